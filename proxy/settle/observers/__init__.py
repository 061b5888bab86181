"""Observers: metrics, logs, traces and learning, all from the one outcome of a request."""
