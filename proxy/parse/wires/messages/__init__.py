"""Anthropic's wire: POST /v1/messages and its token count."""
