"""Signing in and out, by password, one-time link or OpenID provider."""
