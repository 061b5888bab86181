"""The admin API under /v1/admin: what administrators change, for programs. One module a resource."""
