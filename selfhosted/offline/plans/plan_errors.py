"""What can be wrong with the question that a plan shall answer."""


class PlanRefused(ValueError):
    """The plan cannot be made; the message says what to change."""
