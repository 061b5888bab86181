"""Idempotency-Key: the same request sent twice is answered once more, and served and booked once."""
