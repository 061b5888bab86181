"""Prices with their dates and sources: configured, read from a packaged table, or entered by operators."""
