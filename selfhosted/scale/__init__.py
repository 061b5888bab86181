"""Autoscaling: the desired number of a pool's replicas, and the engine processes that follow it."""
