"""Prices: the price book as page, API and list, and how prices are entered."""
