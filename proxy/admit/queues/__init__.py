"""Bounded queues before our own targets: fair between teams, and never longer than a deadline allows."""
