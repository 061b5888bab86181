"""Cost of our own GPUs: pools, replica hours, daily bills, and how a bill is allocated."""
