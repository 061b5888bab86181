"""Tests of versions and rollouts."""
