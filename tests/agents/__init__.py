"""Coding agents as they are published, run against a gateway. `make test-agents` runs them; `make test` does not."""
