"""Tests of the providers folder."""
