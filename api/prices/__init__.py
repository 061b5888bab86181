"""/v1/prices: the price book."""
