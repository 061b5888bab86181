"""Responses that are kept for their callers: sealed under a key outside the database, for a time, within a size."""
