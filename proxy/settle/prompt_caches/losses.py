"""What a prompt could have had from its provider's cache, and why it had less. Pure.

    could  = what an earlier prompt of the same key had as well
    common = the part of it that both begin with
    lost   = could - what was read from the cache

Of what is lost before the first difference the cause is the cache's (it was never written, or is gone); behind it, the
difference itself. Sizes are bytes, and become tokens by the prompt's own share, so all of it is an estimate; what is small is
left out. A loss is only told where an earlier prompt is known: what comes once could not be cached.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from providers.quirks import Quirks
from proxy.settle.prompt_caches.pieces import Pieces
from selfhosted.prefixes.shape import KINDS

Cause = Literal[
    "time",
    "id",
    "system",
    "tools_order",
    "tools",
    "history",
    "settings",
    "unmarked",
    "late",
    "parallel",
    "moved",
    "short",
    "unknown",
]
_TIMES: Final = sum(1 << KINDS.index(kind) for kind in ("time", "date", "clock"))
_IDS: Final = sum(1 << KINDS.index(kind) for kind in ("uuid", "hex", "id", "number"))
_LEAST_TOKENS: Final = 256
"""A smaller loss is the end of a block, or chance."""
_LEAST_SHARE: Final = 0.1
"""And so is one of less than that share of the prompt: tokens are not all of one size."""


class Seen(msgspec.Struct, frozen=True):
    """A prompt that was answered. Times are seconds of one clock."""

    pieces: Pieces
    target_id: str
    began_s: float
    ready_s: float
    """The moment of its first token, from which on others may read its prompt."""


class Read(msgspec.Struct, frozen=True):
    """What the provider said of a prompt, in tokens."""

    tokens: int
    cached: int
    written: int


class Match(msgspec.Struct, frozen=True):
    """What two prompts have in common."""

    at: int
    """Number of pieces that both begin with."""
    common: int
    """Their bytes."""
    could: int
    """Bytes of all pieces that come again, wherever they stand."""


class Loss(msgspec.Struct, frozen=True):
    """Tokens that were billed in full, and might have been read from a cache."""

    cause: Cause
    tokens: int


def compared(before: Pieces, now: Pieces) -> Match:
    """Compare two prompts."""
    at = 0
    for old, new in zip(before.digests, now.digests, strict=False):
        if old != new:
            break
        at += 1
    common = sum(now.sizes[:at])
    known = set(before.digests[at:])
    again = sum(size for digest, size in zip(now.digests[at:], now.sizes[at:], strict=True) if digest in known)
    return Match(at, common, common + again)


def goes_on(before: Pieces, now: Pieces) -> bool:
    """Return True for a prompt that begins with all of an earlier one."""
    return now.digests[: len(before.digests)] == before.digests


class _Reckoning:
    """The losses of one prompt so far, in tokens."""

    def __init__(self, read: Read, size: int) -> None:
        self.found: list[Loss] = []
        self._tokens_a_byte = read.tokens / size
        self._least = max(_LEAST_TOKENS, int(read.tokens * _LEAST_SHARE))
        self._had = read.cached
        """What was read, or is told to be lost already."""

    def lose(self, cause: Cause, could: int) -> None:
        """Tell what is lost up to so many bytes, unless it is small."""
        lost = int(could * self._tokens_a_byte) - self._had
        if lost >= self._least:
            self.found.append(Loss(cause, lost))
        self.pass_over(could)

    def pass_over(self, could: int) -> None:
        """Tell nothing of what is up to so many bytes."""
        self._had = max(self._had, int(could * self._tokens_a_byte))


def losses(now: Seen, read: Read, before: Iterable[Seen], quirks: Quirks) -> tuple[Loss, ...]:
    """Return what was lost of a prompt, from earlier ones of its key."""
    if not now.pieces.size:
        return ()
    reckoning = _Reckoning(read, now.pieces.size)
    ended, running, elsewhere = _sorted(now, before)
    best = _best(ended, now.pieces)
    if best is not None:
        _lose_at(reckoning, now, read, *best, quirks)
    # Only what the prompts before them do not explain.
    if other := _best(running, now.pieces):
        reckoning.lose("parallel", other[1].could)
    if other := _best(elsewhere, now.pieces):
        reckoning.lose("moved", other[1].could)
    return tuple(reckoning.found)


def _lose_at(reckoning: _Reckoning, now: Seen, read: Read, last: Seen, match: Match, quirks: Quirks) -> None:
    """Tell what was lost of what the same target was sent before."""
    if quirks.cache_marked and not (read.cached or read.written):
        reckoning.lose("unmarked", match.could)
    elif quirks.cache_kept_s is not None and now.began_s - last.ready_s > quirks.cache_kept_s:
        reckoning.lose("late", match.could)
    elif match.could == match.common:
        reckoning.lose(_why_not_read(last, now, read, quirks), match.common)
    else:
        cause, early = _difference(last.pieces, now.pieces, match.at)
        if not early:
            # Some providers put tools behind instructions: what differs in these is then before all.
            reckoning.lose(_why_not_read(last, now, read, quirks), match.common)
        reckoning.lose(cause, match.could)


def _sorted(now: Seen, before: Iterable[Seen]) -> tuple[list[Seen], list[Seen], list[Seen]]:
    """Return the earlier prompts of the same target, those of it that were not answered yet, and those of other targets."""
    ended: list[Seen] = []
    running: list[Seen] = []
    elsewhere: list[Seen] = []
    for each in before:
        if each.target_id != now.target_id:
            elsewhere.append(each)
        elif each.ready_s > now.began_s:
            running.append(each)
        else:
            ended.append(each)
    return ended, running, elsewhere


def _best(before: Sequence[Seen], now: Pieces) -> tuple[Seen, Match] | None:
    """Return the earlier prompt that has the most in common with this one, the latest of several."""
    found = [(each, compared(each.pieces, now)) for each in before]
    return max(found, key=lambda each: (each[1].could, each[0].ready_s), default=None)


def _why_not_read(last: Seen, now: Seen, read: Read, quirks: Quirks) -> Cause:
    """Return why what both prompts begin with was not read."""
    if quirks.cache_marked and not read.written:
        return "unmarked"
    return "unknown" if last.pieces.settings == now.pieces.settings else "settings"


def _difference(before: Pieces, now: Pieces, at: int) -> tuple[Cause, bool]:
    """Return what differs at that piece, and whether that is in tools or instructions."""
    if at < max(before.tools, now.tools):
        same = sorted(before.plain[: before.tools]) == sorted(now.plain[: now.tools])
        return "tools_order" if same else "tools", True
    early = at < max(before.tools + before.system, now.tools + now.system)
    kinds = _varying(before, now, at)
    if kinds & _TIMES:
        return "time", early
    if kinds & _IDS:
        return "id", early
    return "system" if early else "history", early


def _varying(before: Pieces, now: Pieces, at: int) -> int:
    """Return what varies in pieces of instructions, or the first message, that are the same without it."""
    known, plain = set(before.digests[at:]), set(before.plain[at:])
    found = 0
    for place in range(at, len(now.plain)):
        if now.digests[place] not in known and now.plain[place] in plain:
            found |= now.kinds[place]
    return found
