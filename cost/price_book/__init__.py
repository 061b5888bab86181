"""Dated prices and their sources: configuration, litellm's packaged table, and overrides entered by operators."""
