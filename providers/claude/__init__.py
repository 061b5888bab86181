"""Claudes at Anthropic's own API: chat requests as its messages, and its replies as chat completions."""
