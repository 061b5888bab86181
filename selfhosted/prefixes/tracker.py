"""Tracks how each team begins its prompts: in memory, bounded, and without keeping any text.

Of a request only its prefix's first 8 KB are hashed (a few microseconds). A prefix that was seen lately is one that a
cache still has, so it is only counted. A new one waits, text and all, for `digest`, which a loop calls a few times a
second; there it is compared with the one before of its family. Only a few wait at once: of a team that sends nothing
but new prefixes a sample is analysed, and each of that stands for those that were not.

Bounds: `HabitLimits.keys` pairs of team and target, evicted by last use; each with at most `families` shapes (about 4
KB each) and `raws` hashes; `waiting` texts of 64 KB. With the defaults below 40 MB in all.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from cost.times import DAY_US, wall_us
from selfhosted.prefixes.shape import (
    KEPT_BYTES,
    KINDS,
    LOOKED_BYTES,
    Break,
    PrefixShape,
    family_name,
    masked_break,
    other_break,
    shape_of,
)

VARIOUS: Final = ""
"""Skeleton of the row for the rest: prefixes that came once or twice, and those beyond the limits."""
_USUAL_BYTES_A_TOKEN: Final = 4.0
_LEAST_BYTES_A_TOKEN: Final = 1.0
_MOST_BYTES_A_TOKEN: Final = 16.0

Looked = Literal["looked", "sampled_out", "lost"]
Counted = Callable[[Looked, int], None]


class HabitLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on what one process keeps."""

    keys: int = 500
    families: int = 8
    raws: int = 64
    waiting: int = 64
    waiting_a_key: int = 2
    pending: int = 10_000
    named_a_day: int = 24
    """The most rows of a team and target on a day; further families count as `VARIOUS`."""
    named_from: int = 3
    """Requests of a family before it gets a row of its own."""
    recent_s: float = 3_600.0
    """Seconds after which a prefix counts as gone from all caches, so that a miss is no break."""


class HabitDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts to add to one row of the table."""

    day_us: int
    organisation_id: str
    team_id: str
    target_id: str
    skeleton: str
    requests: int
    prompt_tokens: int
    broken: int
    broken_tokens: int
    first_break_tokens: int
    """Meaningful only where `broken` is not 0."""
    kinds: tuple[str, ...]


class _Sums:
    __slots__ = ("broken", "broken_tokens", "first_break_tokens", "kinds", "prompt_tokens", "requests")

    def __init__(self) -> None:
        self.requests = self.prompt_tokens = self.broken = self.broken_tokens = 0
        self.first_break_tokens: int | None = None
        self.kinds: set[str] = set()

    def broke(self, found: Break, bytes_a_token: float, times: int) -> None:
        self.broken += times
        self.broken_tokens += times * int(found.same_after / bytes_a_token)
        first = int(found.at / bytes_a_token)
        self.first_break_tokens = first if self.first_break_tokens is None else min(self.first_break_tokens, first)
        self.kinds.update(KINDS[kind] for kind in found.kinds)

    def add(self, other: "_Sums | HabitDelta") -> None:
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.broken_tokens += other.broken_tokens
        first = other.first_break_tokens
        if other.broken and first is not None:
            self.first_break_tokens = first if self.first_break_tokens is None else min(self.first_break_tokens, first)
        self.broken += other.broken
        self.kinds.update(other.kinds)


class _Family:
    """Prefixes that are meant to be the same."""

    __slots__ = ("last", "name", "seen", "sums")

    def __init__(self, name: bytes, last: PrefixShape) -> None:
        self.name = name
        self.last = last
        self.seen = 0
        self.sums = _Sums()


class _Key:
    """The prefixes of one team's prompts to one target."""

    __slots__ = ("day_us", "families", "named", "organisation_id", "raws", "skipped", "skipped_tokens", "waiting")

    def __init__(self, organisation_id: str) -> None:
        self.organisation_id = organisation_id
        self.families: OrderedDict[bytes, _Family] = OrderedDict()
        """Families by the skeleton of their last prefix."""
        self.raws: OrderedDict[int, tuple[_Family, float]] = OrderedDict()
        self.waiting = self.skipped = self.skipped_tokens = 0
        self.named: set[bytes] = set()
        self.day_us = 0


class _Waiting:
    __slots__ = ("bytes_a_token", "repeats", "text", "tokens")

    def __init__(self, text: bytes, tokens: int, bytes_a_token: float) -> None:
        self.text = text
        self.tokens = tokens
        self.bytes_a_token = bytes_a_token
        self.repeats = 0


_Name = tuple[str, str]
_Row = tuple[int, str, str, str, str]


class PrefixTracker:
    """The count of prompt prefixes. `observe` is called for each request; everything else by a background loop."""

    def __init__(
        self,
        *,
        key: bytes,
        limits: HabitLimits = HabitLimits(),  # noqa: B008 - frozen
        now_us: Callable[[], int] = wall_us,
        clock: Callable[[], float] = time.monotonic,
        counted: Counted = lambda _what, _count: None,
    ) -> None:
        """`key` is secret, at most 64 bytes, and the same in all processes of a deployment."""
        self._secret = key
        self._limits = limits
        self._now_us = now_us
        self._clock = clock
        self._counted = counted
        self._keys: OrderedDict[_Name, _Key] = OrderedDict()
        self._waiting: OrderedDict[tuple[_Name, int], _Waiting] = OrderedDict()
        self._pending: dict[_Row, _Sums] = {}

    def observe(
        self,
        organisation_id: str,
        team_id: str,
        target_id: str,
        beginning: bytes,
        prompt_tokens: int,
        prompt_bytes: int = 0,
    ) -> None:
        """Count a request whose system prompt and tools are `beginning`. `prompt_bytes`, the length of the whole
        rendered prompt, gives the bytes of a token; four are assumed without it.
        """
        if not beginning:
            return
        name = (team_id, target_id)
        key = self._keys.get(name)
        if key is None:
            key = self._new_key(name, organisation_id)
        self._keys.move_to_end(name)
        raw = hash(beginning[:LOOKED_BYTES])
        known = key.raws.get(raw)
        now = self._clock()
        if known is not None and now - known[1] <= self._limits.recent_s:
            family = known[0]
            family.sums.requests += 1
            family.sums.prompt_tokens += prompt_tokens
            family.seen += 1
            key.raws[raw] = (family, now)
            key.raws.move_to_end(raw)
            return
        self._enqueue(name, key, raw, beginning, prompt_tokens, prompt_bytes)

    def digest(self, most: int = 16) -> int:
        """Analyse at most `most` waiting prefixes, up to a millisecond each, and return their number."""
        done = 0
        while self._waiting and done < most:
            (name, raw), waiting = self._waiting.popitem(last=False)
            key = self._keys[name]
            key.waiting -= 1
            self._analyse(name, key, raw, waiting)
            done += 1
        self._counted("looked", done)
        return done

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, *, everything: bool = False) -> tuple[HabitDelta, ...]:
        """Take the counts since the last call. Families with few requests are held back unless `everything`."""
        for name, key in self._keys.items():
            for family in key.families.values():
                if family.sums.requests and (everything or self._is_named(key, family)):
                    self._settle(name, key, family)
        taken = tuple(_delta(row, sums) for row, sums in self._pending.items())
        self._pending = {}
        return taken

    def put_back(self, deltas: Iterable[HabitDelta]) -> None:
        """Add deltas again that were surely not written."""
        for delta in deltas:
            row = (delta.day_us, delta.organisation_id, delta.team_id, delta.target_id, delta.skeleton)
            self._add(row, delta)

    def _new_key(self, name: _Name, organisation_id: str) -> _Key:
        while len(self._keys) >= self._limits.keys:
            self._evict(*self._keys.popitem(last=False))
        key = self._keys[name] = _Key(organisation_id)
        return key

    def _evict(self, name: _Name, key: _Key) -> None:
        """Evict a key. Prefixes that were not analysed count as `VARIOUS`."""
        for family in key.families.values():
            self._settle(name, key, family)
        rest = _Sums()
        rest.requests, rest.prompt_tokens = key.skipped, key.skipped_tokens
        for each in [each for each in self._waiting if each[0] == name]:
            waiting = self._waiting.pop(each)
            rest.requests += 1 + waiting.repeats
            rest.prompt_tokens += waiting.tokens
        if rest.requests:
            self._add((self._today_us(), key.organisation_id, *name, VARIOUS), rest)

    def _enqueue(self, name: _Name, key: _Key, raw: int, beginning: bytes, tokens: int, prompt_bytes: int) -> None:
        waiting = self._waiting.get((name, raw))
        if waiting is not None:
            waiting.repeats += 1
            waiting.tokens += tokens
        elif key.waiting < self._limits.waiting_a_key and len(self._waiting) < self._limits.waiting:
            bytes_a_token = _bytes_a_token(tokens, prompt_bytes)
            self._waiting[name, raw] = _Waiting(beginning[:KEPT_BYTES], tokens, bytes_a_token)
            key.waiting += 1
        else:
            key.skipped += 1
            key.skipped_tokens += tokens
            self._counted("sampled_out", 1)

    def _analyse(self, name: _Name, key: _Key, raw: int, waiting: _Waiting) -> None:
        shape = shape_of(waiting.text, self._secret)
        family, found = self._family(name, key, shape)
        # The prefixes that were sampled out were new as well, most likely in the same way.
        times = 1 + key.skipped
        sums = family.sums
        sums.requests += times + waiting.repeats
        sums.prompt_tokens += waiting.tokens + key.skipped_tokens
        family.seen += times + waiting.repeats
        key.skipped = key.skipped_tokens = 0
        if found is not None and raw not in key.raws:
            sums.broke(found, waiting.bytes_a_token, times)
        family.last = shape
        key.raws[raw] = (family, self._clock())
        key.raws.move_to_end(raw)
        while len(key.raws) > self._limits.raws:
            key.raws.popitem(last=False)

    def _family(self, name: _Name, key: _Key, shape: PrefixShape) -> tuple[_Family, Break | None]:
        family = key.families.get(shape.skeleton)
        if family is not None:
            key.families.move_to_end(shape.skeleton)
            return family, masked_break(family.last, shape)
        for skeleton, each in reversed(key.families.items()):
            found = other_break(each.last, shape)
            if found is not None:
                each.name = family_name(each.last, shape)
                del key.families[skeleton]
                key.families[shape.skeleton] = each
                return each, found
        while len(key.families) >= self._limits.families:
            _skeleton, old = key.families.popitem(last=False)
            self._settle(name, key, old)
            for raw in [raw for raw, (family, _seen) in key.raws.items() if family is old]:
                del key.raws[raw]
        family = key.families[shape.skeleton] = _Family(shape.skeleton, shape)
        return family, None

    def _is_named(self, key: _Key, family: _Family) -> bool:
        """Return whether the family has a row of its own today."""
        day_us = self._today_us()
        if key.day_us != day_us:
            key.day_us, key.named = day_us, set()
        if family.name in key.named:
            return True
        if family.seen < self._limits.named_from or len(key.named) >= self._limits.named_a_day:
            return False
        key.named.add(family.name)
        return True

    def _settle(self, name: _Name, key: _Key, family: _Family) -> None:
        if family.sums.requests:
            skeleton = family.name.hex() if self._is_named(key, family) else VARIOUS
            self._add((self._today_us(), key.organisation_id, *name, skeleton), family.sums)
            family.sums = _Sums()

    def _add(self, row: _Row, more: "_Sums | HabitDelta") -> None:
        sums = self._pending.get(row)
        if sums is None:
            if len(self._pending) >= self._limits.pending:
                self._counted("lost", more.requests)
                return
            sums = self._pending[row] = _Sums()
        sums.add(more)

    def _today_us(self) -> int:
        now_us = self._now_us()
        return now_us - now_us % DAY_US


def _bytes_a_token(tokens: int, prompt_bytes: int) -> float:
    if tokens <= 0 or prompt_bytes <= 0:
        return _USUAL_BYTES_A_TOKEN
    return min(_MOST_BYTES_A_TOKEN, max(_LEAST_BYTES_A_TOKEN, prompt_bytes / tokens))


def _delta(row: _Row, sums: _Sums) -> HabitDelta:
    day_us, organisation_id, team_id, target_id, skeleton = row
    return HabitDelta(
        day_us=day_us,
        organisation_id=organisation_id,
        team_id=team_id,
        target_id=target_id,
        skeleton=skeleton,
        requests=sums.requests,
        prompt_tokens=sums.prompt_tokens,
        broken=sums.broken,
        broken_tokens=sums.broken_tokens,
        first_break_tokens=sums.first_break_tokens or 0,
        kinds=tuple(sorted(sums.kinds)),
    )
