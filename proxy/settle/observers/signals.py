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


class _RememberedTurn(msgspec.Struct, frozen=True, gc=False):
    """The part of an answered request that later ones of its conversation are compared with."""

    request_id: str
    target_id: str
    request_digest: str
    artifact: str
    sketch: bytes
    ended_us: int
    turns: int
    repeats: int


class Signals:
    """The verdicts that turns imply. Bounded: the least recently used conversation is evicted first."""

    def __init__(self, *, max_conversations: int = 10_000) -> None:
        self._max = max_conversations
        self._past: OrderedDict[tuple[str, str], tuple[_RememberedTurn, ...]] = OrderedDict()

    def verdicts(
        self,
        answered: ClassifiedRequest,
        *,
        started_us: int,
        turns: int = 1,
        weakness: str | None = None,
        escalated_from: str | None = None,
        person: bool = True,
    ) -> list[Verdict]:
        """Return the verdicts that a request implies about its own answer and about an earlier one. `turns` is the
        number of user messages in its conversation. `weakness` is that of the answer of `escalated_from` when that is
        given, else of its own. Without `person` no verdict is derived from a repetition: a program may have sent it.
        """
        found = []
        if weakness is not None:
            found.append(
                _negative_verdict(answered, weakness, answered.request_id, escalated_from or answered.target_id)
            )
        if person and answered.conversation:
            again = self._repeat_verdict(answered, started_us, turns)
            if again is not None:
                found.append(again)
        return found

    def _repeat_verdict(self, answered: ClassifiedRequest, started_us: int, turns: int) -> Verdict | None:
        key = (answered.team_id, answered.conversation)
        digest, sketch = answered.request_digest, answered.vector[-_SKETCH_BYTES:]
        since_us = started_us - WINDOW_US
        past = self._past.pop(key, ())
        latest = same = None
        for each in past:
            # An earlier answer can be the reason for this request only if it was there before this one was sent.
            if since_us <= each.ended_us <= started_us:
                latest = each
                if digest and each.request_digest == digest:
                    same = each
        turn = _RememberedTurn(
            request_id=answered.request_id,
            target_id=answered.target_id,
            request_digest=digest,
            artifact=answered.artifact,
            sketch=sketch,
            ended_us=answered.at_us,
            turns=turns,
            repeats=0 if same is None else same.repeats + 1,
        )
        self._past[key] = (*past[1 - _TURNS_KEPT :], turn)
        if len(self._past) > self._max:
            self._past.popitem(last=False)
        if same is not None:
            if same.repeats >= _MAX_REPEATS:
                return None
            return _negative_verdict(answered, REGENERATED, same.request_id, same.target_id)
        if latest is not None and _is_re_asked(latest, turn):
            return _negative_verdict(answered, RE_ASKED, latest.request_id, latest.target_id)
        return None


def _is_re_asked(past: _RememberedTurn, turn: _RememberedTurn) -> bool:
    """Return True when the conversation continued with a question similar to the previous one."""
    if turn.turns <= past.turns or past.artifact != turn.artifact or len(past.sketch) != len(turn.sketch):
        return False
    return len(turn.sketch) == _SKETCH_BYTES and likeness(past.sketch, turn.sketch) >= ALIKE


def likeness(sketch: bytes, other: bytes) -> float:
    """Return the dot product of two float16 sketches of the same model."""
    one, two = (np.frombuffer(each, "<f2").astype(np.float32) for each in (sketch, other))
    return float(one @ two)


def _negative_verdict(answered: ClassifiedRequest, signal: str, request_id: str, target_id: str) -> Verdict:
    """Build a negative verdict, which `answered` implies, on the answer of `target_id` to the request of this id."""
    return Verdict(
        request_id=request_id,
        at_us=answered.at_us,
        organisation_id=answered.organisation_id,
        team_id=answered.team_id,
        target_id=target_id,
        source="implicit",
        signal=signal,
        adequate=0.0,
        weight=WEIGHTS.get(signal, _OTHER_WEIGHT),
    )
