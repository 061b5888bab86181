"""Errors of replica hours and bills; each message says what to change."""


class FleetError(Exception):
    """Base of the errors below; the message is for the operator."""


class HoursRefused(FleetError):
    """Replica hours cannot be entered or recorded as given."""


class UnknownPool(FleetError):
    """No pool of this name is configured."""


class DayNotOver(FleetError):
    """The day is not over yet (UTC); a day is billed when it is."""
