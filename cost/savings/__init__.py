"""Savings: baselines of the same work elsewhere, and the verdict on the promised saving."""
