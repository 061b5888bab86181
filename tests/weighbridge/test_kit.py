"""The package of plug-ins' authors: light, and its kit finds what is wrong."""

import ast
import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import weighbridge
from weighbridge.plugins import (
    KINDS,
    PROTOCOLS,
    Call,
    Candidate,
    Identity,
    Kind,
    Outcome,
    Outgoing,
    RequestFacts,
    Score,
    Span,
    Text,
    Verdict,
    facts,
)
from weighbridge.plugins.checking import METHODS
from weighbridge.plugins.testing import DEADLINES_S, try_out

_FOLDER: Final = Path(weighbridge.__file__).parent
_LONG_S: Final = 30.0


def test_it_imports_the_standard_library_alone() -> None:
    """So authors need nothing else for their tests, and nothing in it serves."""
    found = set()
    for path in _FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    assert found <= sys.stdlib_module_names | {"weighbridge"}
    code = "import sys, weighbridge.plugins.testing; print(*(each for each in sys.modules if each in {'gateway', 'proxy', 'msgspec'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_FOLDER.parent)
    assert done.stdout.split() == []
    assert (_FOLDER / "py.typed").is_file()


def test_every_fact_is_frozen_and_every_kind_has_all_its_words() -> None:
    """A plug-in changes nothing of what it is given; fields that come later need a default."""
    structs = [each for each in vars(facts).values() if dataclasses.is_dataclass(each) and isinstance(each, type)]
    assert len(structs) == 10
    for each in structs:
        assert each.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert not {"headers", "authorization", "api_key"} & set(each.__slots__) or each is Outgoing  # type: ignore[attr-defined]
    assert set(KINDS) == PROTOCOLS.keys() == METHODS.keys() == DEADLINES_S.keys()


class GoodGuard:
    protocol = 1

    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        spans = [
            Span(text=place, start=0, end=1, kind="a") for place, each in enumerate(texts) if each.value[:1] == "a"
        ]
        return Verdict(action="mask", spans=tuple(spans)) if spans else Verdict()


class GoodScorer:
    protocol = 1

    def score(self, facts: RequestFacts, candidates: Sequence[Candidate]) -> Sequence[Score]:
        return [Score(target_id=each.target_id, margin_nanousd=5) for each in candidates]


class GoodExporter:
    protocol = 1

    async def finished(self, outcomes: Sequence[Outcome]) -> None:
        return None


class GoodAuthenticator:
    protocol = 1

    async def caller(self, headers: Mapping[str, str]) -> Identity | None:
        return Identity(team_id="a", key_name="b") if headers else None


class GoodDialect:
    protocol = 1

    def request(self, body: Mapping[str, Any], call: Call) -> Outgoing:
        return Outgoing(path="generate", body=b"{}")

    def reader(self, call: Call) -> "GoodDialect":
        return self

    def whole(self, payload: bytes) -> Mapping[str, Any]:
        return {"choices": []}

    def event(self, payload: bytes) -> Mapping[str, Any] | None:
        return None


GOOD: Final[Mapping[Kind, Callable[[], Any]]] = {
    "guard": GoodGuard,
    "scorer": GoodScorer,
    "exporter": GoodExporter,
    "authenticator": GoodAuthenticator,
    "dialect": GoodDialect,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_kit_finds_nothing_in_good_ones(kind: Kind) -> None:
    """One of each kind."""
    await try_out(GOOD[kind](), kind)


class Outside(GoodGuard):
    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        return Verdict(action="mask", spans=(Span(text=0, start=0, end=10_000, kind="a"),))


class Unmasked(GoodGuard):
    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        return Verdict(action="mask")


class TellsTheText(GoodGuard):
    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        return Verdict(action="flag", name=" ".join(each.value for each in texts) * 3)


class Changes(GoodGuard):
    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        facts.team_id = "other"  # type: ignore[misc]
        return Verdict()


class Sleeps(GoodGuard):
    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        await asyncio.sleep(_LONG_S)
        return Verdict()


class OddFails(GoodGuard):
    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        _ = texts[0]
        return Verdict()


class Fickle(GoodScorer):
    calls = 0

    def score(self, facts: RequestFacts, candidates: Sequence[Candidate]) -> Sequence[Score]:
        self.calls += 1
        return [Score(target_id="small", margin_nanousd=self.calls)]


class Floats(GoodScorer):
    def score(self, facts: RequestFacts, candidates: Sequence[Candidate]) -> Sequence[Score]:
        return [Score(target_id="small", margin_nanousd=0.5)]  # type: ignore[arg-type]


class KnowsEverybody(GoodAuthenticator):
    async def caller(self, headers: Mapping[str, str]) -> Identity | None:
        return Identity(team_id="a", key_name="b")


class GoesElsewhere(GoodDialect):
    def request(self, body: Mapping[str, Any], call: Call) -> Outgoing:
        return Outgoing(path="https://elsewhere.example/steal", body=b"")


@pytest.mark.parametrize(
    ("kind", "bad", "told"),
    [
        ("guard", Outside, "a span outside its text"),
        ("guard", Unmasked, "`mask` without spans"),
        ("guard", TellsTheText, "a name is text of at most 64"),
        ("guard", Changes, "it raises FrozenInstanceError"),
        ("guard", Sleeps, "it takes longer than 0.05 s"),
        ("guard", OddFails, "no text: it raises IndexError"),
        ("scorer", Fickle, "the same facts got two answers"),
        ("scorer", Floats, "`margin_nanousd` is a whole number"),
        ("authenticator", KnowsEverybody, "whoever sends no header is known"),
        ("dialect", GoesElsewhere, "without a host"),
        ("exporter", GoodGuard, "it looks like a guard: write `kind: guard`"),
    ],
)
async def test_the_kit_finds_what_is_wrong(kind: Kind, bad: Callable[[], Any], told: str) -> None:
    """In words that say what to do."""
    with pytest.raises(AssertionError) as wrong:
        await try_out(bad(), kind, deadline_s=0.05)
    assert told in str(wrong.value)
