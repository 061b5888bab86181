"""What can go wrong with the hours and bills of our own GPUs."""


class FleetError(Exception):
    """Something about our own GPUs' hours that its reader can mend. The message says what."""


class HoursRefused(FleetError):
    """A pool's hours cannot be entered as asked."""


class UnknownPool(FleetError):
    """The configuration has no pool of this name."""


class DayNotOver(FleetError):
    """A day is billed when it is over, and not before."""
