"""Erasure of a person, and of a team's content: one table of what is kept where, and what becomes of it."""
