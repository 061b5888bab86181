"""Kept responses: read, listed and deleted by the team that asked for them."""
