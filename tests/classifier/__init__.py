"""Tests of the classifier."""
