"""The control plane as people and their programs see it: pages, admin API, finance API, changes, boards and alerts."""
