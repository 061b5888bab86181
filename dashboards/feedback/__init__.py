"""Callers' feedback on answers."""
