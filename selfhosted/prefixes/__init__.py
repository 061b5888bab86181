"""Prompt prefixes that change from request to request, by team, and the cost of the cache misses. No text is kept."""
