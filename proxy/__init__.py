"""The data plane: the request line and what it stands on."""
