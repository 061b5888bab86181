"""Fixtures that every folder's tests may ask for."""

import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
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
    "tests.made_alike",
    "tests.object_store",
    "tests.postgres",
    "tests.redis_server",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: nearly all that is made then stays, and to look takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


LONG_S = 1_200
_TESTS: Final = Path(__file__).parent
_STORIES: Final = tuple(
    _TESTS / folder
    for folder in ("api/ask", "browser", "dashboards", "documents", "gateway", "planner", "scenarios", "simulation")
)
"""Folders whose tests are marked `story`: most of each starts a whole gateway, a command or a plan."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark stories, and give what takes long the time for it on a machine that is ten times slower, unless it says how long it may take."""
    for item in items:
        if any(map(item.path.is_relative_to, _STORIES)):
            item.add_marker("story")
        if item.get_closest_marker("long") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_S))


def pytest_collection_finish() -> None:
    """Freeze what was collected, which stays to the end: nobody need look through its million objects again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
