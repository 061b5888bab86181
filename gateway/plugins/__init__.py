"""Plug-ins: loading what the configuration names, and calling it within a deadline."""
