"""The request's straight line, its HTTP surface, settings and wiring."""
