"""What a request tells, without anybody's word, about an answer: about its own, or about an earlier one.

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
"""By signal. What can be checked against what was asked for weighs more than what may have other reasons."""
_OTHER_WEIGHT: Final = 0.2

WINDOW_US: Final = 600_000_000
"""Later than this, a question that comes again is a new one."""
ALIKE: Final = 0.8
"""Two questions whose sketches have at least this dot product are taken for the same one in other words."""
_MAX_REPEATS: Final = 2
"""A request that comes more often than a person would send it comes from a program, and says nothing."""
_TURNS_KEPT: Final = 4
_SKETCH_BYTES: Final = SKETCH * 2


class ConversationTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One answered request, as far as the next one of its conversation is compared with it."""

    weighing: ClassifiedRequest
    started_us: int
    turns: int = 1
    """User messages in it."""
    weakness: str | None = None
    """What was weak: in the answer of `escalated_from` when there was one, else in the answer given."""
    escalated_from: str | None = None
    person: bool = True
    """Whether somebody may be waiting: the batch tier has nobody who would ask again."""


class _RememberedTurn(msgspec.Struct, frozen=True):
    """What is remembered of a turn."""

    request_id: str
    target_id: str
    request_digest: str
    artifact: str
    sketch: bytes
    ended_us: int
    turns: int
    repeats: int


class Signals:
    """Turns each turn into verdicts. Its memory is bounded: the least recently used conversation goes first."""

    def __init__(self, *, max_conversations: int = 10_000) -> None:
        self._max = max_conversations
        self._past: OrderedDict[tuple[str, str], tuple[_RememberedTurn, ...]] = OrderedDict()

    def verdicts(self, turn: ConversationTurn) -> list[Verdict]:
        """What this turn tells about its own answer and about an earlier one."""
        found = []
        if turn.weakness is not None:
            found.append(_negative(turn, turn.weakness))
        if turn.person and turn.weighing.conversation:
            again = self._compared(turn)
            if again is not None:
                found.append(again)
        return found

    def _compared(self, turn: ConversationTurn) -> Verdict | None:
        key = (turn.weighing.team_id, turn.weighing.conversation)
        # An earlier answer can be the reason for this request only if it was there before this one was sent.
        since_us = turn.started_us - WINDOW_US
        past = tuple(each for each in self._past.pop(key, ()) if each.ended_us >= since_us)
        seen = [each for each in past if each.ended_us <= turn.started_us]
        same = next((each for each in reversed(seen) if _same(each, turn)), None)
        self._past[key] = (*past, _remembered(turn, same))[-_TURNS_KEPT:]
        if len(self._past) > self._max:
            self._past.popitem(last=False)
        if same is not None:
            return _negative(turn, REGENERATED, same) if same.repeats < _MAX_REPEATS else None
        if seen and _asked_again(seen[-1], turn):
            return _negative(turn, RE_ASKED, seen[-1])
        return None


def _same(past: _RememberedTurn, turn: ConversationTurn) -> bool:
    return bool(past.request_digest) and past.request_digest == turn.weighing.request_digest


def _asked_again(past: _RememberedTurn, turn: ConversationTurn) -> bool:
    """The conversation went on, with a question like the one before."""
    weighing = turn.weighing
    sketch = weighing.vector[-_SKETCH_BYTES:]
    if turn.turns <= past.turns or past.artifact != weighing.artifact or len(past.sketch) != len(sketch):
        return False
    return len(sketch) == _SKETCH_BYTES and likeness(past.sketch, sketch) >= ALIKE


def likeness(sketch: bytes, other: bytes) -> float:
    """The dot product of two sketches of the same model."""
    one, two = (np.frombuffer(each, "<f2").astype(np.float32) for each in (sketch, other))
    return float(one @ two)


def _remembered(turn: ConversationTurn, same: _RememberedTurn | None) -> _RememberedTurn:
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


def _negative(turn: ConversationTurn, signal: str, past: _RememberedTurn | None = None) -> Verdict:
    """Against the earlier answer when there is one, else against the turn's own weak one."""
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
