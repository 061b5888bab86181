"""Simulator of a fleet, to compare policies and to plan with."""
