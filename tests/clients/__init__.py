"""Clients of others as they are published, run against a gateway. `make test-clients` runs them; `make test` does not."""
