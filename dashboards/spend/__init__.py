"""Spend: what it is made of, what changed, and where each part leads."""
