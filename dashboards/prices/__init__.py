"""Prices: the price book as page, API and list, and its changes."""
