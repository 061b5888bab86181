"""LiteLLM's admin routes, over the same changes as the admin API; and what its clients say of an object that has no place here."""
