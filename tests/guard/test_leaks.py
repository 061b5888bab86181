"""Whatever a body looks like and wherever a value stands in it: it is masked, or goes to own engines, or it was not there."""

import json
import random
from typing import Any, Final

import msgspec
import pytest

from guard.guard_config import GuardSection
from guard.inspector import Guard
from guard.walker import WIRES
from tests.examples import USUAL

MAIL: Final = "jane.doe@example.com"
CARD: Final = "4111111111111111"
RULES: Final = [{"name": "all", "kind": "pii", "entities": ["email", "card"], "input": "mask"}]
NAMES: Final = (
    *(
        "messages",
        "input",
        "content",
        "text",
        "role",
        "type",
        "tools",
        "function",
        "arguments",
        "name",
        "parameters",
        "properties",
    ),
    *(
        "description",
        "enum",
        "system",
        "instructions",
        "metadata",
        "user",
        "data",
        "source",
        "file_data",
        "url",
        "image_url",
    ),
    *(
        "signature",
        "thinking",
        "output",
        "summary",
        "prompt",
        "query",
        "documents",
        "tool_calls",
        "unheard_of",
        "id",
        "cache_control",
    ),
)
WORDS: Final = (
    "user",
    "assistant",
    "tool",
    "system",
    "text",
    "tool_use",
    "tool_result",
    "function_call",
    "thinking",
    "base64",
    "hello",
)


class Bodies:
    """Random bodies with values in them, of fields that wires know and in places where they do not."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)

    def body(self) -> dict[str, Any]:
        found = {"model": "m", "messages": [self.turn() for _ in range(self.draws.randint(0, 4))]}
        return found | {self.name(): self.value(0) for _ in range(self.draws.randint(0, 5))}

    def turn(self) -> Any:
        return {"role": self.draws.choice(WORDS), "content": self.value(0)} | (
            {self.name(): self.value(1)} if self.draws.random() < 0.4 else {}
        )

    def value(self, depth: int) -> Any:
        kind = self.draws.random()
        if depth > 5 or kind < 0.45:
            return self.text()
        if kind < 0.7:
            return {self.name(): self.value(depth + 1) for _ in range(self.draws.randint(0, 4))}
        if kind < 0.85:
            return [self.value(depth + 1) for _ in range(self.draws.randint(0, 4))]
        if kind < 0.92:
            return json.dumps(self.value(depth + 1))
        return self.draws.choice([None, True, 7, 1.5, int(CARD)])

    def name(self) -> str:
        return self.draws.choice(NAMES) if self.draws.random() < 0.95 else f"a {MAIL} b"

    def text(self) -> str:
        kind = self.draws.random()
        if kind < 0.3:
            return self.draws.choice(WORDS)
        value = self.draws.choice((MAIL, CARD))
        return value if kind < 0.5 else f"{'x ' * self.draws.randint(0, 200)}é {value}, and {self.draws.choice(WORDS)}"


def everything(value: Any) -> list[str]:
    """All texts, names and numbers of a body, those in JSON within texts too."""
    if isinstance(value, dict):
        return [*value, *(text for each in value.values() for text in everything(each))]
    if isinstance(value, list):
        return [text for each in value for text in everything(each)]
    found = [str(value)]
    if isinstance(value, str) and value[:1] in {"{", "["}:
        try:
            found += everything(json.loads(value))
        except ValueError:
            return found
    return found


@pytest.mark.parametrize("wire", sorted(WIRES))
async def test_no_value_leaves(wire: str) -> None:
    """Masked bodies have none; those that keep one go to own engines, or have it in a tool's definition, which is told."""
    guard = Guard(GuardSection.model_validate({"rules": RULES}), b"k" * 32)
    rules = await guard.rules_for(None)
    masked = 0
    for seed in range(USUAL * 3):
        body = Bodies(seed).body()
        raw = msgspec.json.encode(body)
        verdict = guard.judge(rules, "t", wire, raw)
        left = [text for text in everything(json.loads(verdict.body or raw)) if MAIL in text or CARD in text]
        told = {each.action for each in verdict.findings}
        masked += "mask" in told and not left
        assert not left or verdict.own or "flag" in told, (seed, left)
        assert (verdict.body is None) == ("mask" not in told), seed
        again = guard.judge(rules, "t", wire, verdict.body or raw)
        # What was masked is clean: a second look finds what goes to own engines alone.
        assert "mask" not in {each.action for each in again.findings}, seed
        assert again.own == verdict.own
    assert masked > 0 or wire in {"embeddings", "speech", "images", "image_edits", "image_variations", "image_forms"}
