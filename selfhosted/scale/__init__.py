"""How many replicas a pool should have."""
