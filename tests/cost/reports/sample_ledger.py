"""Books with one of everything, written by the ledger's own store: what an export has to tell."""

import random
from collections.abc import Iterator
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from cost.meters import METER_COLUMNS
from cost.prices import LongPrompt, Price
from cost.reports.focus import FocusNames
from cost.usage import Usage
from tests.cost.entries import settle

DAY_US = 86_400_000_000
APRIL_US = 1_775_001_600_000_000
"""2026-04-01. The books go on into May."""
NAMES = FocusNames(organisations={"default": "Exämple, Inc."}, teams={"a": "=cmd|' /C calc'!A0", "b": 'Quote "B"'})

SMALL = Price(
    version="2026-01-01",
    input_nanousd=400_000_001,
    output_nanousd=1_600_000_003,
    cached_input_nanousd=100_000_000,
    cache_write_nanousd=500_000_000,
    cache_write_1h_nanousd=800_000_000,
    reasoning_nanousd=1_700_000_000,
    request_nanousd=1_234,
)
LONG = Price(
    version="long",
    input_nanousd=1_250_000_000,
    output_nanousd=10_000_000_000,
    cached_input_nanousd=125_000_000,
    cache_write_nanousd=1_250_000_000,
    long_prompts=(
        LongPrompt(
            above_tokens=200_000,
            price=Price(
                version="long",
                input_nanousd=2_500_000_000,
                output_nanousd=15_000_000_000,
                cached_input_nanousd=250_000_000,
                cache_write_nanousd=2_500_000_000,
            ),
        ),
    ),
)
PLANNED = Price(
    version="planned/h100",
    input_nanousd=90_000_000,
    output_nanousd=700_000_000,
    cached_input_nanousd=9_000_000,
    cache_write_nanousd=90_000_000,
)
PRICES = {("gpt-5-mini", "2026-01-01"): SMALL, ("gemini", "long"): LONG, ("llama", "planned/h100"): PLANNED}
_TARGETS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt-5-mini", {"provider": "openai", "price_version": "2026-01-01"}),
    ("gemini", {"provider": "google", "price_version": "long"}),
    ("llama", {"provider": "self-hosted", "price_version": "planned/h100", "pool": "h100"}),
    ("forgotten", {"provider": "anthropic", "price_version": "nobody kept it"}),
    ("mystery", {"provider": "vllm", "price_version": ""}),
)


async def figures(target_id: str, version: str) -> Price | None:
    return PRICES.get((target_id, version))


def _usage(rng: random.Random) -> Usage:
    tokens = rng.choice([120, 900, 250_000])
    cached, written = rng.choice([(0, 0), (tokens // 3, tokens // 5)])
    output = rng.randrange(1, 900)
    return Usage(
        input_tokens=tokens,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=written // 2,
        output_tokens=output,
        reasoning_tokens=output // rng.choice([2, 10**6]),
        source="upstream",
    )


def requests(count: int, seed: int = 4) -> Iterator[Entry]:
    """Settled attempts over seven days around a month's end."""
    rng = random.Random(seed)
    for number in range(count):
        target, fields = rng.choice(_TARGETS)
        usage = _usage(rng)
        price = PRICES.get((target, fields["price_version"]), SMALL if target == "forgotten" else None)
        costs = price.costs_nanousd(usage) if price is not None else (0,) * len(METER_COLUMNS)
        yield settle(
            f"req_{number:05}",
            target_id=target,
            team_id=rng.choice("ab"),
            key_id=rng.choice(["key_1", "key_2"]),
            tier=rng.choice(["interactive", "batch"]),
            tag=rng.choice(["", "search", '{"=1+1"}']),
            origin=rng.choice(["caller", "caller", "caller", "shadow"]),
            at_us=APRIL_US + 26 * DAY_US + rng.randrange(7 * DAY_US),
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cache_write_1h_tokens=usage.cache_write_1h_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost_nanousd=None if price is None else sum(costs),
            **dict(zip(METER_COLUMNS, costs, strict=True)),
            **fields,
        )


def postings() -> Iterator[Entry]:
    """What the books post themselves, in a month that is over and in one that is not."""

    def adjust(posting: str, day: int, **changes: Any) -> Entry:
        usual = {
            "entry": "adjust",
            "at_us": APRIL_US + day * DAY_US + 5,
            "boot_id": "books",
            "alias": "",
            "deployment_id": "",
            "usage_source": "none",
            "status": 0,
            "input_tokens": 0,
            "output_tokens": 0,
            "baseline_nanousd": None,
            "origin": posting.partition("/")[0],
        }
        return settle(posting, **{**usual, **changes})

    pool = {"target_id": "llama", "provider": "self-hosted", "pool": "h100", "price_version": "true-up"}
    for day in (26, 31):
        yield adjust(f"true-up/{day}/1", day, team_id="a", cost_nanousd=-77_777, output_nanousd=-77_777, **pool)
        yield adjust(
            f"idle/{day}/1",
            day,
            **{**pool, "team_id": "", "key_id": "", "tier": "idle", "target_id": "h100"},
            cost_nanousd=141_600_000_001,
        )
        yield adjust(
            f"correction/{day}/1",
            day,
            team_id="b",
            target_id="gpt-5-mini",
            provider="openai",
            input_tokens=-40,
            cost_nanousd=-16,
            input_nanousd=-16,
        )
        yield adjust(f"reconciliation/{day}/1", day, team_id="b", target_id="gemini", provider="google", cost_nanousd=3)
    yield adjust("idle/27/1", 27, **{**pool, "team_id": "", "target_id": "h100", "tier": "idle"}, cost_nanousd=-5)
    # What was booked before there were meters.
    yield settle("old", team_id="a", key_id="", provider="", at_us=APRIL_US + 26 * DAY_US, cost_nanousd=999_999_999)


async def write(engine: AsyncEngine, count: int = 600) -> list[Entry]:
    """Everything, in the database and its roll-ups."""
    entries = [*requests(count), *postings()]
    store = LedgerStore(engine)
    for start in range(0, len(entries), 200):
        await store.insert(entries[start : start + 200])
    return entries
