"""/v1/operations: the state of targets, stores, workers and incidents, which the operators' pages show too."""
