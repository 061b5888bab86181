"""Our own GPUs: pools, the hours they were up, what a day of them cost, and who pays for it."""
