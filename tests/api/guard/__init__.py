"""The guard's rules of organisations and teams."""
