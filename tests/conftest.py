"""Fixtures that every folder's tests may ask for."""

pytest_plugins = ["tests.postgres"]
