"""Budgets: their page, their API, and how they are changed."""
