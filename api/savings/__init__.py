"""/v1/savings: the savings report."""
