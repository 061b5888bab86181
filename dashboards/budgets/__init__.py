"""Budgets: their page, their API, and their changes."""
