"""Errors in the question that a plan should answer."""


class PlanRefused(ValueError):
    """The plan cannot be made. The message says what to change."""
