"""Judging answers: cut, refused, broken, or given with little confidence."""
