"""Readers of the newest requests: the last minutes, the live tail, and drift of prompts."""
