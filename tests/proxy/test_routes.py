"""The list of wires: whole, without two of one path, and what everything else goes by."""

import importlib
import pkgutil
import re
from pathlib import Path
from typing import get_args

import pytest

import proxy.parse.wires
from api.openapi.document import _ABOUT
from providers.wire import Operation
from proxy.batch.batch import MESSAGES_ENDPOINT, OPERATIONS, Endpoint
from proxy.parse.wires.wire import Wire
from proxy.routes import WIRE_AT, WIRES

_DOCS = Path(__file__).parents[2] / "docs"


def test_every_wire_that_is_defined_is_served() -> None:
    """At paths of its own, and every operation by one of them at least."""
    defined: dict[str, Wire] = {}
    for found in pkgutil.walk_packages(proxy.parse.wires.__path__, f"{proxy.parse.wires.__name__}."):
        for each in vars(importlib.import_module(found.name)).values():
            if isinstance(each, Wire):
                defined[each.path] = each
    assert defined == {wire.path: wire for wire in WIRES}
    assert len(WIRE_AT) == sum(1 + len(wire.other_paths) for wire in WIRES)
    assert {wire.operation for wire in WIRES} == set(get_args(Operation))


def test_lines_of_batches_ask_wires() -> None:
    """Each endpoint is a wire's own path, with its operation."""
    assert {*get_args(Endpoint), MESSAGES_ENDPOINT} == OPERATIONS.keys()
    assert {wire.path: wire.operation for wire in WIRES if wire.path in OPERATIONS} == OPERATIONS


@pytest.mark.parametrize("page", ["wires.md", "api.md"])
def test_the_pages_name_every_wire(page: str) -> None:
    """By its path, or by one that ends in `…`."""
    assert _unnamed((_DOCS / page).read_text()) == []


def test_the_document_of_the_control_plane_names_them_too() -> None:
    """There what is below another wire's path goes with that."""
    below = {wire.path for wire in WIRES if any(wire.path.startswith(f"{other.path}/") for other in WIRES)}
    assert set(_unnamed(_ABOUT)) <= below


def _unnamed(text: str) -> list[str]:
    named = set(re.findall(r"/v\d/[\w/{}-]*…?", text))
    begun = tuple(each.removesuffix("…") for each in named if each.endswith("…"))
    return [wire.path for wire in WIRES if wire.path not in named and not wire.path.startswith(begun or ("-",))]
