"""Judgement of answers: truncated, refused, malformed, or of low confidence."""
