"""The list of models that a caller may name."""
