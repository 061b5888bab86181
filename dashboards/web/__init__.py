"""Shared by the pages: authorisation, sessions, forms, views and error pages."""
