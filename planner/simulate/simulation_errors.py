"""Errors that refuse a simulation before it starts."""


class SimulationRefused(Exception):
    """The simulation cannot be run as it was asked for."""


class TraceUnreadable(SimulationRefused):
    """A trace is missing, too long, or has a line that is not one of its format's. The message names file and line."""


class PlotsUnavailable(SimulationRefused):
    """matplotlib is not installed."""
