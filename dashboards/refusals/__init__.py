"""Refused requests as pages and APIs show them."""
