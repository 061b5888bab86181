"""Organisations, teams, people and API keys: authentication, roles and the audit log."""
