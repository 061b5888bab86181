"""Our table of quirks beside litellm's: what differs is listed, what is new is named, and nothing is guessed."""

from typing import Any

import pytest

from cost.price_book.litellm_table import read_table
from providers.litellm_client import parameters_by_litellm
from providers.parameters import DECISIVE, MINOR
from providers.quirks_compared import Comparison, compared

EVERYTHING = DECISIVE | MINOR


def one(name: str, supported: frozenset[str] | None = None, **row: Any) -> Comparison:
    return compared({name: {"mode": "chat", **row}}, lambda _model: supported)


def test_a_parameter_that_only_one_table_refuses_is_told() -> None:
    """In either direction; what both say of is not."""
    found = one("gpt-4o", EVERYTHING - {"seed", "reasoning_effort"}, litellm_provider="openai")
    told = [(each.what, each.ours, each.theirs) for each in found.differences]
    assert told == [("seed", "sent as asked", "not taken"), ("verbosity", "left out", "taken")]
    assert found.compared == 1


def test_without_litellm_flags_alone_are_compared() -> None:
    found = one("claude-opus-4-8", None, litellm_provider="anthropic", supports_assistant_prefill=True)
    assert [(each.what, each.ours, each.theirs) for each in found.differences] == [
        ("supports_assistant_prefill", "no", "yes")
    ]
    right = {"supports_assistant_prefill": False, "supports_sampling_params": False, "supports_adaptive_thinking": True}
    assert not one("claude-opus-4-8", None, litellm_provider="anthropic", **right).differences


def test_new_families_and_versions_are_named() -> None:
    """Those of a version that no row begins with are what the newest row is tried on."""
    assert one("gpt-9-nova-x", litellm_provider="openai").inherited == ("openai/gpt-9-nova-x",)
    assert one("zephyr-7", litellm_provider="openai").unknown == ("openai/zephyr-7",)
    assert one("gpt-4o", litellm_provider="openai").inherited == ()


@pytest.mark.parametrize("row", [{"litellm_provider": "nobody"}, {"litellm_provider": "openai", "mode": "embedding"}])
def test_what_cannot_be_addressed_is_left_out(row: dict[str, Any]) -> None:
    assert one("x", **row).compared == 0


def test_the_installed_litellm_agrees_on_the_claudes() -> None:
    """Of all flags of Anthropic's own models, none differs."""
    rows = {name: row for name, row in read_table().rows.items() if row.get("litellm_provider") == "anthropic"}
    found = compared(rows, parameters_by_litellm())
    assert found.compared > 10
    assert not found.differences
