"""The data plane: the request line and its stages."""
