"""Shared by the API and the pages: the running gateway's parts, rights of keys, parameters, bodies and changes."""
