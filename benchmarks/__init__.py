"""Load tests and measurements, each a module of its own; see docs/benchmarks.md.

The gateway beside a bare relay of the same bytes:

    python -m benchmarks.run --quick
"""
