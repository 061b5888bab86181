"""Versions of the models that our pools serve, and rollouts from one version to the next."""
