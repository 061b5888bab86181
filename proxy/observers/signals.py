"""Implicit feedback: verdicts that a request's traffic implies about its own answer, or about an earlier one.

Such a signal is a guess, so each weighs less than a person's word, which weighs 1.
"""

from collections import OrderedDict
from typing import Final

import msgspec
import numpy as np

from classifier.learning.store import ClassifiedRequest, Verdict
from classifier.tuning import SKETCH

REGENERATED: Final = "regenerated"
RE_ASKED: Final = "re-asked"
WEIGHTS: Final = {
    "truncated": 0.3,
    "refused": 0.5,
    "invalid-json": 0.8,
    "schema-mismatch": 0.8,
    "malformed-tool-arguments": 0.8,
    "low-logprob": 0.2,
    REGENERATED: 0.2,
    RE_ASKED: 0.2,
}
"""Weights by signal, a person's verdict being 1. Failures that can be checked weigh more than behaviour with other
possible reasons.
"""
_OTHER_WEIGHT: Final = 0.2

WINDOW_US: Final = 600_000_000
"""The longest time after which a repeated question still counts as a repetition."""
ALIKE: Final = 0.8
"""The least dot product of two sketches at which the questions count as the same one reworded."""
_MAX_REPEATS: Final = 2
"""The most repetitions that count; a request repeated more often comes from a program."""
_TURNS_KEPT: Final = 4
_SKETCH_BYTES: Final = SKETCH * 2


class ConversationTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One answered request, with what later ones of its conversation are compared with."""

    weighing: ClassifiedRequest
    started_us: int
    turns: int = 1
    """The number of user messages in the conversation."""
    weakness: str | None = None
    """The weakness found: of the answer of `escalated_from` when that is set, else of the given answer."""
    escalated_from: str | None = None
    person: bool = True
    """True when a person may be waiting; batch requests are never re-asked by hand."""


class _RememberedTurn(msgspec.Struct, frozen=True):
    """The part of a turn that is retained for comparison."""

    request_id: str
    target_id: str
    request_digest: str
    artifact: str
    sketch: bytes
    ended_us: int
    turns: int
    repeats: int


class Signals:
    """Derives verdicts from turns. Bounded: the least recently used conversation is evicted first."""

    def __init__(self, *, max_conversations: int = 10_000) -> None:
        self._max = max_conversations
        self._past: OrderedDict[tuple[str, str], tuple[_RememberedTurn, ...]] = OrderedDict()

    def verdicts(self, turn: ConversationTurn) -> list[Verdict]:
        """Returns the verdicts that this turn implies about its own answer and about an earlier one."""
        found = []
        if turn.weakness is not None:
            found.append(_negative_verdict(turn, turn.weakness))
        if turn.person and turn.weighing.conversation:
            again = self._repeat_verdict(turn)
            if again is not None:
                found.append(again)
        return found

    def _repeat_verdict(self, turn: ConversationTurn) -> Verdict | None:
        key = (turn.weighing.team_id, turn.weighing.conversation)
        # An earlier answer can be the reason for this request only if it was there before this one was sent.
        since_us = turn.started_us - WINDOW_US
        past = self._past.pop(key, ())
        latest = same = None
        for each in past:
            if since_us <= each.ended_us <= turn.started_us:
                latest = each
                if _is_same_request(each, turn):
                    same = each
        self._past[key] = (*past[1 - _TURNS_KEPT :], _as_remembered(turn, same))
        if len(self._past) > self._max:
            self._past.popitem(last=False)
        if same is not None:
            return _negative_verdict(turn, REGENERATED, same) if same.repeats < _MAX_REPEATS else None
        if latest is not None and _is_re_asked(latest, turn):
            return _negative_verdict(turn, RE_ASKED, latest)
        return None


def _is_same_request(past: _RememberedTurn, turn: ConversationTurn) -> bool:
    return bool(past.request_digest) and past.request_digest == turn.weighing.request_digest


def _is_re_asked(past: _RememberedTurn, turn: ConversationTurn) -> bool:
    """Returns True when the conversation continued with a question similar to the previous one."""
    weighing = turn.weighing
    sketch = weighing.vector[-_SKETCH_BYTES:]
    if turn.turns <= past.turns or past.artifact != weighing.artifact or len(past.sketch) != len(sketch):
        return False
    return len(sketch) == _SKETCH_BYTES and likeness(past.sketch, sketch) >= ALIKE


def likeness(sketch: bytes, other: bytes) -> float:
    """The dot product of two float16 sketches of the same model."""
    one, two = (np.frombuffer(each, "<f2").astype(np.float32) for each in (sketch, other))
    return float(one @ two)


def _as_remembered(turn: ConversationTurn, same: _RememberedTurn | None) -> _RememberedTurn:
    weighing = turn.weighing
    return _RememberedTurn(
        request_id=weighing.request_id,
        target_id=weighing.target_id,
        request_digest=weighing.request_digest,
        artifact=weighing.artifact,
        sketch=weighing.vector[-_SKETCH_BYTES:],
        ended_us=weighing.at_us,
        turns=turn.turns,
        repeats=0 if same is None else same.repeats + 1,
    )


def _negative_verdict(turn: ConversationTurn, signal: str, past: _RememberedTurn | None = None) -> Verdict:
    """Builds a negative verdict on the earlier answer, or without `past` on the turn's own weak answer."""
    weighing = turn.weighing
    own_target = turn.escalated_from or weighing.target_id
    return Verdict(
        request_id=weighing.request_id if past is None else past.request_id,
        at_us=weighing.at_us,
        organisation_id=weighing.organisation_id,
        team_id=weighing.team_id,
        target_id=own_target if past is None else past.target_id,
        source="implicit",
        signal=signal,
        adequate=0.0,
        weight=WEIGHTS.get(signal, _OTHER_WEIGHT),
    )
