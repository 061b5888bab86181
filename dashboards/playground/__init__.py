"""Trying a prompt: which model each quality would choose, and what two models answer."""
