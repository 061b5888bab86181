"""/v1/feedback: judgements of answers, and their sums."""
