"""Budgets: what may be spent in a day, a week or a month, held before each attempt so that nothing overruns it."""
