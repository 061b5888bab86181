"""Fixtures that every folder's tests may ask for."""

import os

# Before numpy is loaded: on a busy machine with two cores, threads of the linear algebra made a refit 30 times slower,
# for its matrices are small and the threads mostly waited for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

pytest_plugins = ["tests.postgres", "tests.redis_server"]
