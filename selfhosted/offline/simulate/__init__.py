"""A fleet in simulated time, to compare policies and to plan with."""
