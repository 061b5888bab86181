"""The savings claim: baselines of the same work elsewhere, and whether the promised saving was met."""
