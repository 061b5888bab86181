"""Wires: the APIs that callers speak, each a parser into the one internal request and a writer of its answers."""
