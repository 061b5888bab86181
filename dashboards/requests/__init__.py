"""A team's requests, and one request with its routing decision."""
