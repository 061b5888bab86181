"""Tests mirror the packages; scenarios/ tells whole stories over real sockets."""
