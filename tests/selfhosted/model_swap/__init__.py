"""Tests of whose turn it is on shared GPUs."""
