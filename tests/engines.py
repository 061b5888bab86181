"""Real llama.cpp replicas as child processes: the demo's engine, killed and read as tests need."""

import contextlib
import os
import re
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gateway.demo.children import Child, family

_SAMPLE: Final = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})? (\S+)", re.MULTILINE)
ALIAS: Final = "tiny"
"""The model's name there."""


class LlamaReplica:
    """One engine with one seat and 135 million parameters."""

    def __init__(self, name: str, child: Child) -> None:
        self.name = name
        self._child = child
        self.url = child.read_announcement()["base_url"].removesuffix("/v1")

    def samples(self) -> Mapping[str, float]:
        """What its metrics page says now."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10.0) as page:  # noqa: S310 - our own child
            return {name: float(value) for name, value in _SAMPLE.findall(page.read().decode())}

    def kill(self) -> None:
        """Kill -9: its sockets are closed with it, and nothing is said."""
        os.kill(self._child.pid, signal.SIGKILL)

    @property
    def ended(self) -> bool:
        return self._child.ended()


@contextlib.contextmanager
def llama_replicas(folder: Path, *names: str) -> Iterator[tuple[LlamaReplica, ...]]:
    """Ready to answer; they are gone at the end of the block."""
    with family() as children:
        for name in names:
            command = ["-m", "gateway.demo.engine", ALIAS]
            children.append(Child(f"replica {name}", command, log=folder / f"{name}.log", environ=os.environ))
        yield tuple(LlamaReplica(name, child) for name, child in zip(names, children, strict=True))
