"""Tests of providers' batch APIs."""
