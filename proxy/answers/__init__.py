"""Judging answers: what is weak, what is asked again of a better target, and what is held back meanwhile."""
