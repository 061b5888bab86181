"""API keys: their pages, their API, and their changes."""
