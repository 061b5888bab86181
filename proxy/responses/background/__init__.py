"""Responses that are made in the background: kept as rows with a lease, run by whoever has room, followed by their callers."""
