"""API keys: their pages, their API, and how they are made, rotated and revoked."""
