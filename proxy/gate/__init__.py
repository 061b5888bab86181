"""The gate: who gets in, when, and what a caller is told that has to wait."""
