"""Shared by pages and APIs: authorisation, forms, bodies, parameters, and the running gateway's parts."""
