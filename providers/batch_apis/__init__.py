"""Providers' own batch APIs: work that is handed over in one piece, at the price of a batch."""
