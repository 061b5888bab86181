"""How fast the straight line is, beside a bare relay of the same bytes. See docs/benchmarks.md."""
