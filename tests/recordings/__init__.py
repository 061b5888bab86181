"""Replies of engines, byte for byte, and what made them: README.md says which were recorded and which were written after a source."""
