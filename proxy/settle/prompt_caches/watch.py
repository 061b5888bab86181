"""Watches what requests had from providers' prompt caches, in one process: in memory, bounded, and without keeping any text.

`note` is called once a request's caller has its answer, and takes a microsecond or two: it looks at nothing of the prompt. Prompts
that a cache might have had wait for `digest`, which a loop calls a few times a second. Where more come than it has time for, the
rest is counted as not looked at, and nothing is claimed of it.

Bounds: `WatchLimits.keys` keys with `prompts` prompts each (about 20 KB for 500 messages), `waiting` prompts of `most_bytes` in
all `waiting_bytes`. A prompt is compared with those of its own key and process alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from cost.prices import Price
from cost.times import DAY_US, wall_us
from providers.quirks import Quirks
from providers.wire import ChatRequest
from proxy.dispatch.attempt import Attempt
from proxy.plan.route_plan import is_own
from proxy.settle.prompt_caches.losses import Cause, Read, Seen, goes_on, losses
from proxy.settle.prompt_caches.pieces import PieceMaker, Pieces

LOOKED: Final = "looked"
SKIPPED: Final = "skipped"
_LOOKED_FROM_TOKENS: Final = 1_024
"""Shorter prompts are not looked at where nobody says from which length on they are cached."""
_MILLION: Final = 1_000_000
_UNREADABLE: Final = (msgspec.MsgspecError, LookupError, ValueError)


class WatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on what one process keeps."""

    keys: int = 300
    prompts: int = 8
    waiting: int = 64
    waiting_a_key: int = 16
    most_bytes: int = 1_048_576
    waiting_bytes: int = 2_097_152
    """So many are looked at four times a second at most: some 30 ms."""
    rows: int = 10_000
    known_s: float = 7_200.0
    """Seconds for which a prompt is remembered, or for as long as its provider says that it keeps one."""


class CacheDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts to add to one row of the table."""

    day_us: int
    organisation_id: str
    team_id: str
    target_id: str
    cause: str
    requests: int
    tokens: int
    nanousd: int
    unpriced: int


class _Waiting(msgspec.Struct, frozen=True):
    """An answered request, until it is looked at."""

    organisation_id: str
    team_id: str
    key_id: str
    target_id: str
    request: ChatRequest
    size: int
    read: Read
    quirks: Quirks
    nanousd_a_million: int | None
    began_s: float
    ready_s: float


_Row = tuple[int, str, str, str, str]


class PromptCacheWatch:
    """The count of one process. `note` is called for each answer; everything else by a background loop."""

    def __init__(
        self,
        *,
        key: bytes,
        limits: WatchLimits = WatchLimits(),  # noqa: B008 - frozen
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        """`key` is secret, at most 64 bytes."""
        self._limits = limits
        self._now_us = now_us
        self._maker = PieceMaker(key)
        self._keys: OrderedDict[str, list[Seen]] = OrderedDict()
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._of_key: dict[str, int] = {}
        self._pending: dict[_Row, list[int]] = {}

    def note(self, attempt: Attempt) -> None:
        """Take an attempt whose answer its caller has. Never raises."""
        routed, settled = attempt.routed, attempt.settled
        if (
            settled is None
            or settled.outcome.result != "ok"
            or settled.usage.source != "upstream"
            or routed.request.operation != "chat"
        ):
            return
        target, usage = attempt.candidate.target, settled.usage
        saved = _saved_nanousd(target.price, batch=routed.facts.tier == "batch")
        if saved == 0 or routed.origin != "caller" or is_own(target, routed.pools):
            # Nothing is saved there by what is read from a cache; of own engines another report tells.
            return
        caller, quirks = routed.caller, attempt.deployment.quirks
        least = quirks.cache_least_tokens
        if usage.input_tokens < (_LOOKED_FROM_TOKENS if least is None else least):
            if least is not None:
                # Whether it comes again is not looked at, so no money is claimed.
                self._count(caller.organisation_id, caller.team_id, target.target_id, "short", usage.input_tokens, 0)
            return
        size = len(memoryview(routed.request.fields.get("messages", b"")))
        mine = self._of_key.get(caller.key_id, 0)
        if (
            mine >= self._limits.waiting_a_key
            or len(self._waiting) >= self._limits.waiting
            or size > self._limits.most_bytes
            or self._waiting_bytes + size > self._limits.waiting_bytes
        ):
            self._count(caller.organisation_id, caller.team_id, target.target_id, SKIPPED, usage.input_tokens, 0)
            return
        self._of_key[caller.key_id] = mine + 1
        self._waiting_bytes += size
        self._waiting.append(
            _Waiting(
                caller.organisation_id,
                caller.team_id,
                caller.key_id,
                target.target_id,
                routed.request,
                size,
                Read(usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens),
                quirks,
                saved,
                attempt.started_at,
                attempt.first_token_at or attempt.started_at,
            )
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def digest(self, most: int = 16) -> int:
        """Look at most at so many prompts that wait, in the order in which they were answered, and return their number."""
        taken, self._waiting = self._waiting[:most], self._waiting[most:]
        for each in taken:
            self._waiting_bytes -= each.size
            left = self._of_key[each.key_id] - 1
            if left:
                self._of_key[each.key_id] = left
            else:
                del self._of_key[each.key_id]
            try:
                pieces = self._maker.pieces(each.request)
            except _UNREADABLE:
                self._count(each.organisation_id, each.team_id, each.target_id, SKIPPED, each.read.tokens, 0)
            else:
                self._look(each, pieces)
        return len(taken)

    def take(self, *, everything: bool = False) -> tuple[CacheDelta, ...]:
        """Take the counts since the last call."""
        del everything
        taken = tuple(_delta(row, sums) for row, sums in self._pending.items())
        self._pending = {}
        return taken

    def put_back(self, deltas: Iterable[CacheDelta]) -> None:
        """Add deltas again that were surely not written."""
        for each in deltas:
            row = (each.day_us, each.organisation_id, each.team_id, each.target_id, each.cause)
            self._add(row, (each.requests, each.tokens, each.nanousd, each.unpriced))

    def _look(self, each: _Waiting, pieces: Pieces) -> None:
        now = Seen(pieces, each.target_id, each.began_s, each.ready_s)
        known = self._known(each.key_id)
        self._count(each.organisation_id, each.team_id, each.target_id, LOOKED, each.read.tokens, 0)
        for loss in losses(now, each.read, known, each.quirks):
            self._count(
                each.organisation_id, each.team_id, each.target_id, loss.cause, loss.tokens, each.nanousd_a_million
            )
        self._remember(known, now, max(self._limits.known_s, each.quirks.cache_kept_s or 0.0))

    def _known(self, key_id: str) -> list[Seen]:
        """Return the prompts of a key, the latest last."""
        known = self._keys.get(key_id)
        if known is None:
            while len(self._keys) >= self._limits.keys:
                self._keys.popitem(last=False)
            known = self._keys[key_id] = []
        self._keys.move_to_end(key_id)
        return known

    def _remember(self, known: list[Seen], now: Seen, known_s: float) -> None:
        """Remember a prompt in place of the one that it goes on from, if there is one, and else of the oldest."""

        def is_over(each: Seen) -> bool:
            replaced = each.target_id == now.target_id and each.ready_s <= now.began_s
            return now.ready_s - each.ready_s > known_s or (replaced and goes_on(each.pieces, now.pieces))

        known[:] = [each for each in known if not is_over(each)]
        known.append(now)
        del known[: -self._limits.prompts]

    def _count(
        self, organisation_id: str, team_id: str, target_id: str, cause: Cause | str, tokens: int, rate: int | None
    ) -> None:
        now_us = self._now_us()
        nanousd = 0 if rate is None else tokens * rate // _MILLION
        row = (now_us - now_us % DAY_US, organisation_id, team_id, target_id, cause)
        self._add(row, (1, tokens, nanousd, int(rate is None)))

    def _add(self, row: _Row, more: Iterable[int]) -> None:
        sums = self._pending.get(row)
        if sums is None:
            if len(self._pending) >= self._limits.rows:
                return
            sums = self._pending[row] = [0, 0, 0, 0]
        for place, amount in enumerate(more):
            sums[place] += amount


def _delta(row: _Row, sums: list[int]) -> CacheDelta:
    day_us, organisation_id, team_id, target_id, cause = row
    requests, tokens, nanousd, unpriced = sums
    return CacheDelta(
        day_us=day_us,
        organisation_id=organisation_id,
        team_id=team_id,
        target_id=target_id,
        cause=cause,
        requests=requests,
        tokens=tokens,
        nanousd=nanousd,
        unpriced=unpriced,
    )


def _saved_nanousd(price: Price | None, *, batch: bool) -> int | None:
    """Return what a million tokens cost less when they are read from the cache; None where that is not known."""
    if price is None or not price.has_tokens:
        return None
    if batch and price.batch is not None:
        price = price.batch
    return max(0, price.input_nanousd - price.cached_input_nanousd)
