"""Load tests and measurements, each a module of its own; see docs/benchmarks.md.

An example: `python -m benchmarks.run --quick` compares the gateway with a bare relay of the same bytes.
"""
