"""Errors of budgets as operators set them; each message says what to change."""


class BudgetError(Exception):
    """Base of the budget errors below; the message is for the person who made the request."""


class BadBudget(BudgetError):
    """The budget is not valid: its id, scope, tag, webhook or limit."""


class UnknownBudget(BudgetError):
    """No such budget, or another organisation's: the two must look the same."""


class BudgetConflict(BudgetError):
    """The budget's id or scope is taken, a fixed field would change, or there are too many budgets."""
