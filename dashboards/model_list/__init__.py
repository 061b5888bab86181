"""The models that a caller may name."""
