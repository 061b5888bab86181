"""Pools that share GPUs: which of them is awake."""
