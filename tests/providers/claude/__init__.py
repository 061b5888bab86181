"""Tests of Claudes at their own API."""
