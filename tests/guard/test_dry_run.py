"""What rules would find in a text: where, what would be done, and a value's ends alone."""

from typing import Any

import pytest

from guard.dry_run import body_of, dry_run, ends
from guard.guard_config import GuardSection
from guard.inspector import Guard
from guard.ruleset import Ruleset

CARD = "4111 1111 1111 1111"
RULES: list[dict[str, Any]] = [
    {"name": "cards", "kind": "pii", "entities": ["card"], "input": "block"},
    {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"},
]


@pytest.fixture
async def rules() -> Ruleset:
    return await Guard(GuardSection.model_validate({"rules": RULES}), b"k" * 32).rules_for(None)


async def test_each_is_told_with_its_place_and_its_ends(rules: Ruleset) -> None:
    """From 1 on, by line and character."""
    found = dry_run(rules, "chat", body_of(f"first\nwrite to jane.doe@example.com and {CARD}"))
    assert [(each.kind, each.action, each.line, each.column) for each in found.hits] == [
        ("email", "mask", 2, 10),
        ("card", "block", 2, 35),
    ]
    assert [each.value for each in found.hits] == ["ja…om (20 characters)", "41…11 (19 characters)"]


async def test_earlier_messages_are_masked_where_new_ones_are_refused(rules: Ruleset) -> None:
    """As a request with them would be."""
    found = dry_run(rules, "chat", body_of("and now?", system="be kind", history=f"pay with {CARD}"))
    assert [(each.kind, each.action, each.role) for each in found.hits] == [("card", "mask", "user")]


def test_a_short_value_is_not_shown_at_all() -> None:
    """Its ends would be all of it."""
    assert ends("1234567") == "… (7 characters)"
