"""Readers and reports of finance: usage, daily reports, exports and recent requests."""
