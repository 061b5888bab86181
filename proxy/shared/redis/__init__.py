"""The shared Redis: one connection behind a breaker, and the count of live processes."""
