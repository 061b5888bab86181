"""What a request tells about an answer without anybody's word."""

from typing import Any

import numpy as np
import pytest

from classifier.learning.store import Verdict
from classifier.tuning import SKETCH
from proxy.settle.observers.signals import WEIGHTS, WINDOW_US, Signals
from tests.classifier.learning.kept import NOON_US, a_weighing

SECOND_US = 1_000_000


def a_vector(*direction: float) -> bytes:
    """Six loads, then a sketch of length 1 that points this way."""
    sketch = np.zeros(SKETCH)
    sketch[: len(direction)] = direction
    return np.concatenate([np.zeros(6), sketch / np.linalg.norm(sketch)]).astype("<f2").tobytes()


def implied(signals: Signals, number: int, *, at_s: float = 0.0, took_s: float = 1.0, **changes: Any) -> list[Verdict]:
    """What turn `number` of one conversation implies, answered `at_s` after noon."""
    at_us = NOON_US + round(at_s * SECOND_US)
    named = ("weakness", "escalated_from", "person", "turns")
    own: dict[str, Any] = {"turns": number} | {name: changes.pop(name) for name in named if name in changes}
    values = {"at_us": at_us, "request_digest": f"d{number}", "vector": a_vector(1.0), **changes}
    answered = a_weighing(f"req_{number}", **values)
    return signals.verdicts(answered, started_us=at_us - round(took_s * SECOND_US), **own)


def told(verdicts: list[Verdict]) -> list[tuple[str, str, str]]:
    assert all(each.source == "implicit" and each.adequate == 0.0 for each in verdicts)
    return [(each.signal, each.request_id, each.target_id) for each in verdicts]


@pytest.mark.parametrize("weakness", ["truncated", "refused", "invalid-json", "malformed-tool-arguments"])
def test_a_weak_answer_speaks_against_its_own_target(weakness: str) -> None:
    """With a weight that is less than a person's word."""
    (verdict,) = implied(Signals(), 1, weakness=weakness)
    assert told([verdict]) == [(weakness, "req_1", "small")]
    assert 0 < verdict.weight == WEIGHTS[weakness] < 1


def test_after_an_escalation_the_first_target_is_blamed() -> None:
    """The better target's answer stood in for the weak one and is not spoken against."""
    found = implied(Signals(), 1, weakness="refused", escalated_from="tiny", target_id="large")
    assert told(found) == [("refused", "req_1", "tiny")]


def test_the_same_request_again_speaks_against_the_first_answer() -> None:
    """Sent within ten minutes after it was answered, in the same conversation of the same team."""
    signals = Signals()
    assert implied(signals, 1, request_digest="same") == []
    again = implied(signals, 2, at_s=30, request_digest="same", turns=1, target_id="large")
    assert told(again) == [("regenerated", "req_1", "small")]


def test_what_is_no_repetition() -> None:
    """Too late, sent before the first was answered, of another team or conversation, without a digest, from a batch."""
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("too late", {"at_s": WINDOW_US / SECOND_US + 2}),
        ("side by side", {"at_s": 0.5}),
        ("another team", {"at_s": 30, "team_id": "team_b"}),
        ("another conversation", {"at_s": 30, "conversation": "other"}),
        ("no conversation", {"at_s": 30, "conversation": ""}),
        ("no digest", {"at_s": 30, "request_digest": ""}),
        ("batch", {"at_s": 30, "person": False}),
    )
    for name, changes in cases:
        signals = Signals()
        implied(signals, 1, request_digest=changes.get("request_digest", "same"))
        values = {"request_digest": "same", "turns": 1, **changes}
        assert implied(signals, 2, **values) == [], name


def test_a_program_that_repeats_itself_says_nothing_more() -> None:
    """After a second repetition the same request no longer counts against anybody."""
    signals = Signals()
    found = [implied(signals, number, at_s=60 * number, request_digest="ping", turns=1) for number in range(6)]
    assert [len(each) for each in found] == [0, 1, 1, 0, 0, 0]


def test_the_same_question_in_other_words_speaks_against_the_answer_before() -> None:
    """The conversation went on, and its sketch is close to the one before."""
    signals = Signals()
    implied(signals, 1, vector=a_vector(1.0))
    found = implied(signals, 2, at_s=30, vector=a_vector(0.9, 0.3))
    assert told(found) == [("re-asked", "req_1", "small")]


def test_what_is_no_second_asking() -> None:
    """Another question, another model's vector, no vector, and a first question that only looks like another."""
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("another question", {"vector": a_vector(0.7, 0.7)}),
        ("another model", {"artifact": "model-2"}),
        ("no vector", {"vector": b""}),
        ("half a vector", {"vector": b"\x00"}),
        ("not a later turn", {"turns": 1}),
    )
    for name, changes in cases:
        signals = Signals()
        implied(signals, 1)
        assert implied(signals, 2, at_s=30, **changes) == [], name


def test_the_memory_is_bounded() -> None:
    """The conversation that was not used longest is forgotten, and each keeps only its last turns."""
    signals = Signals(max_conversations=2)
    for name in ("one", "two", "one", "three"):
        implied(signals, 1, conversation=name, person=True)
    assert [key[1] for key in signals._past] == ["one", "three"]
    for number in range(20):
        implied(signals, number, at_s=60, conversation="one", vector=b"")
    assert max(len(turns) for turns in signals._past.values()) == 4
