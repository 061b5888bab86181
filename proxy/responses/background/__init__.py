"""Responses that are made in the background: kept as rows with a lease, run by any process with room, followed by
their callers.
"""
