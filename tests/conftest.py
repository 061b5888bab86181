"""Fixtures that every folder's tests may ask for."""

import gc
import os

from hypothesis import settings

from tests.examples import USUAL

# Before numpy is loaded: on a busy machine with two cores, threads of the linear algebra made a refit 30 times slower,
# for its matrices are small and the threads mostly waited for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A busy machine is slow now and then, which says nothing of what a property is about. `make test-long` tries many more.
settings.register_profile("suite", deadline=None, max_examples=USUAL)
settings.load_profile("suite")

pytest_plugins = [
    "tests.compiled_statements",
    "tests.leaping_time",
    "tests.object_store",
    "tests.postgres",
    "tests.redis_server",
]


def pytest_collection_finish() -> None:
    """What was collected stays to the end: nobody need look through its million objects again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
