"""Readers and reports of finance: usage, daily reports, exports, forecasts and recent requests."""
