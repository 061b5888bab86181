"""Token buckets for organisations, teams, keys and models, shared by all processes where there is a Redis."""
