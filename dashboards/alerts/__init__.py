"""Alerts with thresholds of their own, on spend, errors, latency and lack of room."""
