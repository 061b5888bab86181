"""The Redis that processes share, reached over one connection behind a breaker, and who else is alive."""
