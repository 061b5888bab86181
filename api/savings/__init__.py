"""/v1/savings: the savings claim."""
