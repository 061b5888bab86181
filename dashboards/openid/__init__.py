"""Signing in through an OpenID provider: the protocol, and who somebody becomes here."""
