"""Watching a pool's replicas: probes, readings, and what follows from both."""
