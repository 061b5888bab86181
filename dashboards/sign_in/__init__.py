"""Signing in and out, with a password, a one-time link or an OpenID provider."""
