"""Wiring: builds the parts of one process from their configuration sections."""
