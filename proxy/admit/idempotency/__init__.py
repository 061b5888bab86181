"""Idempotency-Key: a request sent twice is served and booked once, and answered alike."""
