"""Ledger entries: append-only facts about attempts, keyed (request_id, attempt, entry)."""

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from cost.meters import METER_COLUMNS, REPLAYED_COLUMNS, TOKEN_COLUMNS
from cost.usage import UsageSource

EntryKind = Literal["reserve", "settle", "void", "expire", "adjust", "cache"]
"""`cache`: an answer that was kept and given again; it stands by itself, costs nothing, and is in no sum of requests or tokens."""
Origin = Literal["caller", "shadow", "true-up", "idle", "correction", "reconciliation"]
"""Cause of an entry: a caller's request, a shadow call behind it, or a posting of the ledger's own."""
AttemptKey = tuple[str, int]
"""An attempt: request id and attempt number."""
Arm = Literal["", "holdout", "control"]
"""Arm of the holdout experiment: `holdout` goes to the reference, `control` is routed as usual but counted apart."""

TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,63}", re.ASCII)
TAG_RULE: Final = "1 to 64 of letters, digits and . _ : / @ -, beginning with a letter or digit"
"""Rule for tags that callers give their requests, as told in error messages."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One fact about one attempt. Money is nano-dollars; times are microseconds since the epoch, UTC.

    A `reserve` carries the most the attempt may cost; a `settle` what it did cost, which is the sum of the
    meters' amounts (`input_nanousd` is what neither came from nor went to a cache). `cost_nanousd` is None when the
    price is unknown, never 0. An `adjust` is signed, and its request_id names the posting that it belongs to. `boot_id`
    names the gateway process that wrote it, so that a restart can tell an orphan from a request that another process is
    still serving.
    """

    request_id: str
    attempt: int
    entry: EntryKind
    at_us: int
    boot_id: str
    organisation_id: str
    team_id: str
    key_id: str
    tier: str
    alias: str
    target_id: str
    deployment_id: str
    provider: str
    price_version: str
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_nanousd: int | None
    baseline_nanousd: int | None
    usage_source: UsageSource
    flags: tuple[str, ...]
    status: int
    stream: bool
    complexity: float | None
    reason: str
    ttft_us: int | None
    duration_us: int | None
    # Later additions stand at the end with defaults, so that an older journal can still be read.
    cache_write_1h_tokens: int = 0
    """Part of `cache_write_tokens` that is kept for an hour."""
    input_nanousd: int = 0
    cached_input_nanousd: int = 0
    cache_write_nanousd: int = 0
    cache_write_1h_nanousd: int = 0
    output_nanousd: int = 0
    reasoning_nanousd: int = 0
    request_nanousd: int = 0
    tag: str = ""
    pool: str = ""
    """Pool of our own GPUs that served it; empty for a bought one."""
    origin: Origin = "caller"
    served: bool = False
    """True if the caller got this attempt's answer, whole. At most one of a request's attempts has it."""
    arm: Arm = ""
    baseline_price: str = ""
    """Price of the baseline, as `target@version`; the two below likewise."""
    cheapest_nanousd: int | None = None
    """Cost of the same work at the cheapest commercial target that passed the same quality gate."""
    cheapest_price: str = ""
    hosted_nanousd: int | None = None
    """Cost of the same work at a host of the same weights; for what was bought, its own cost."""
    hosted_price: str = ""
    priced_attempts: int = 0
    """Of an `adjust`: number of formerly unpriced attempts that it prices."""
    margin_nanousd: int | None = None
    """Expected cost of one more request like it, by which its target was compared with others. No cost: it is
    in no sum."""
    margin_why: str = ""
    """Reasons of that figure, as in `proxy.plan.marginal_cost`; empty where nothing was compared."""
    considered: str = ""
    """Figures by which the gateway compared the targets when it chose one, as `proxy.plan.decision_record` writes it; with a request's
    first attempt alone."""
    version: str = ""
    """Version of the model that the pool's replica said it runs; empty where none is known, and `-` where none is
    known during a rollout."""
    batch_saved_nanousd: int = 0
    """Of a settlement in the tier batch: the cost of the same usage at the same target in the interactive tier, less
    its own. 0 where it cost the same.
    """
    unit: str = ""
    """Unit of what was used beside tokens, as in `cost.usage.Usage`; its cost is in `request_nanousd`."""
    quantity_milli: int = 0
    """Quantity of it, in thousandths."""
    end_user: str = ""
    """The caller's own user, as the request names them, or a digest of a personal name; empty for none."""
    disputed_nanousd: int = 0
    """What would be owed beside the cost for what the upstream told beyond the possible (`cost.usage`). In no sum of costs."""
    audio_input_tokens: int = 0
    image_input_tokens: int = 0
    cached_audio_input_tokens: int = 0
    cached_image_input_tokens: int = 0
    audio_output_tokens: int = 0
    image_output_tokens: int = 0
    video_output_tokens: int = 0
    audio_input_nanousd: int = 0
    image_input_nanousd: int = 0
    cached_audio_input_nanousd: int = 0
    cached_image_input_nanousd: int = 0
    audio_output_nanousd: int = 0
    image_output_nanousd: int = 0
    video_output_nanousd: int = 0
    began_us: int | None = None
    """Time from the request's arrival to the attempt's beginning. None where it is not known, as in the two below."""
    queued_us: int | None = None
    """Part of it that the request waited in queues since the attempt before."""
    given_us: int | None = None
    """Of an attempt whose answer the caller was given, or its beginning: time from the request's arrival to the caller's first
    token. `ttft_us` is the attempt's own: a queue, a retry, and holding an answer back come between the two.
    """
    replayed_input_tokens: int = 0
    """Of an entry `cache`: the tokens that the answer was told to have when a model gave it. This time nobody used them."""
    replayed_output_tokens: int = 0
    cache_saved_nanousd: int = 0
    """Of an entry `cache`: what the answer cost when a model gave it. No part of what routing saved."""


BOOKS: Final = "books"
"""`boot_id` of entries that no process wrote for a request, such as postings."""
HANDED: Final = "handed_"
"""Beginning of the `boot_id` of reserves that no process holds, because a provider's batch may take a day to answer."""
TERMINAL: Final[frozenset[EntryKind]] = frozenset({"settle", "void", "expire"})
"""Kinds of entry that close a reserve."""

NO_METERS: Final = dict.fromkeys(METER_COLUMNS, 0)
_NO_TOKENS: Final = dict.fromkeys(TOKEN_COLUMNS, 0)


def price_of(baseline: str) -> str:
    """Return the column of the price that a baseline was computed at."""
    return baseline.replace("_nanousd", "_price")


def undivided(cost_nanousd: int | None) -> dict[str, int]:
    """Return meter amounts that put all of a cost under the request, when it cannot be divided by token."""
    return {**NO_METERS, "request_nanousd": cost_nanousd or 0}


def void_of(reserve: Entry) -> Entry:
    """Return the entry that cancels a reserve, for an attempt that was never made."""
    return msgspec.structs.replace(
        reserve,
        entry="void",
        quantity_milli=0,
        cost_nanousd=0,
        baseline_nanousd=None,
        cheapest_nanousd=None,
        hosted_nanousd=None,
        usage_source="none",
        **_NO_TOKENS,
        **NO_METERS,
    )


def orphan_settlement(reserve: Entry) -> Entry:
    """Return the settlement of an attempt whose process died: at its reserved cost, flagged as an estimate.

    It is dated like its reserve, so that whoever recovers it writes the very same entry. Its status is 0, for nobody
    knows what the caller saw; so no baseline is claimed for it.
    """
    return msgspec.structs.replace(
        reserve,
        entry="settle",
        baseline_nanousd=None,
        cheapest_nanousd=None,
        hosted_nanousd=None,
        usage_source="estimated",
        flags=(*reserve.flags, "orphaned"),
        status=0,
        **undivided(reserve.cost_nanousd),
    )


_SIGNED: Final = (
    *TOKEN_COLUMNS,
    "quantity_milli",
    "priced_attempts",
    "batch_saved_nanousd",
    "disputed_nanousd",
    *REPLAYED_COLUMNS,
    *METER_COLUMNS,
)
BASELINE_COLUMNS: Final = ("baseline_nanousd", "cheapest_nanousd", "hosted_nanousd")
"""Amounts that an answer's work would have cost elsewhere; None where nothing is compared."""


def reversal_of(entry: Entry) -> Entry:
    """Return the adjustment that cancels an entry: the same with every amount negated."""
    amounts = {name: getattr(entry, name) for name in ("cost_nanousd", *BASELINE_COLUMNS)}
    return msgspec.structs.replace(
        entry,
        entry="adjust",
        **{name: None if amount is None else -amount for name, amount in amounts.items()},
        **{name: -getattr(entry, name) for name in _SIGNED},
    )


def adjustment(
    request_id: str,
    *,
    at_us: int,
    origin: Origin,
    meters_nanousd: Sequence[int],
    reason: str = "",
    priced_attempts: int = 0,
    **facts: Any,
) -> Entry:
    """Return one entry of a posting: signed amounts in the order of `METER_COLUMNS`, which add up to its cost.

    `facts` are the dimensions of the group that it corrects, and tokens where it corrects those too.
    """
    told: dict[str, Any] = (
        {"baseline_nanousd": None} | _NO_TOKENS | dict(zip(METER_COLUMNS, meters_nanousd, strict=True)) | facts
    )
    return Entry(
        **told,
        request_id=request_id,
        attempt=1,
        entry="adjust",
        at_us=at_us,
        boot_id=BOOKS,
        alias="",
        deployment_id="",
        cost_nanousd=sum(meters_nanousd),
        usage_source="none",
        flags=(),
        status=0,
        stream=False,
        complexity=None,
        reason=reason,
        ttft_us=None,
        duration_us=None,
        origin=origin,
        priced_attempts=priced_attempts,
    )
