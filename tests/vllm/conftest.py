"""Two real vLLM replicas for all stories in this folder. `make test-vllm` runs them; `make test` does not."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.vllm.engines import VllmReplica

_PYTHON: Final = os.environ.get("WB_VLLM_PYTHON", "")
"""Of the environment that vLLM is installed in."""
_MADE: Final = Path(os.environ.get("WB_VLLM_MODEL", ""))

# The engines need an environment of their own, which `make test-vllm` makes.
collect_ignore_glob = [] if _PYTHON else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Waiting ends when engines stand still; this bound is for what hangs otherwise."""
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.timeout(3_600))


class Pair(msgspec.Struct, frozen=True):
    """The two, which are alike."""

    a: VllmReplica
    b: VllmReplica

    @property
    def both(self) -> tuple[VllmReplica, VllmReplica]:
        return (self.a, self.b)


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Started one after the other: together they would take as long, and two cores are little."""
    folder = tmp_path_factory.mktemp("engines")
    found = Pair(*(VllmReplica(name, python=_PYTHON, made=_MADE, folder=folder) for name in ("a", "b")))
    try:
        for engine in found.both:
            engine.start()
            engine.warm()
        yield found
    finally:
        for engine in found.both:
            engine.kill()


@pytest.fixture
def seer(tmp_path: Path) -> Iterator[VllmReplica]:
    """One that sees pictures."""
    engine = VllmReplica("seer", python=_PYTHON, made=_MADE / "seer", folder=tmp_path, more=("--no-enable-lora",))
    try:
        engine.start()
        engine.warm()
        yield engine
    finally:
        engine.kill()


@pytest.fixture
def pair(engines: Pair) -> Pair:
    """Both of them, alive, whatever the test before did to them."""
    for engine in engines.both:
        if not engine.running:
            engine.start()
            engine.warm()
    return engines
