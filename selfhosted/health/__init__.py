"""Watching a pool's replicas: probes, scrapes, and the health that follows from both."""
