"""Upstreams: targets and deployments, wire types, HTTP clients, circuit breakers and the retry budget."""
