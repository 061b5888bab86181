"""Processes of a gateway: one server, or workers under a supervisor."""
