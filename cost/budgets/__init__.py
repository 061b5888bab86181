"""Budgets: spending limits per day, week or month; a hard one is enforced by a hold before each attempt."""
