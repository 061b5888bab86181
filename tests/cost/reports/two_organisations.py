"""Made-up books of two organisations over two days, small enough to be added up by hand."""

import random
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from cost.reports.scope import ReadScope
from cost.times import DAY_US, HOUR_US
from tests.cost.entries import reserve, settle

DAY: int = 1_775_347_200_000_000
"""2026-04-05 in UTC."""
WHOLE = ReadScope(organisation_id="acme", team_id=None)
TEAM_A = ReadScope(organisation_id="acme", team_id="team_a")
OTHERS = ReadScope(organisation_id="rival", team_id=None)


def booked(request_id: str, **changes: Any) -> Entry:
    """An answered attempt of team A of acme, whose meters add up to its cost."""
    usual: dict[str, Any] = {
        "organisation_id": "acme",
        "team_id": "team_a",
        "key_id": "key_a",
        "target_id": "small",
        "provider": "vllm",
        "at_us": DAY + 12 * HOUR_US,
        "input_tokens": 800,
        "cached_input_tokens": 300,
        "output_tokens": 200,
        "cost_nanousd": 1_000_001,
        "input_nanousd": 500_000,
        "cached_input_nanousd": 100_001,
        "output_nanousd": 400_000,
        "served": True,
    }
    return settle(request_id, **{**usual, **changes})


def idle(request_id: str, **changes: Any) -> Entry:
    """A day's idle GPUs, which are nobody's."""
    usual: dict[str, Any] = {
        "entry": "adjust",
        "team_id": "",
        "key_id": "",
        "alias": "",
        "tier": "idle",
        "target_id": "h100",
        "provider": "self-hosted",
        "origin": "idle",
        "input_tokens": 0,
        "cached_input_tokens": 0,
        "output_tokens": 0,
        "cost_nanousd": 70_000_000,
        "input_nanousd": 0,
        "cached_input_nanousd": 0,
        "output_nanousd": 0,
        "baseline_nanousd": None,
        "usage_source": "none",
        "status": 0,
        "served": False,
    }
    return booked(request_id, **{**usual, **changes})


def two_days() -> list[Entry]:
    """Five attempts and idle GPUs of acme, and two attempts of its rival, one of a team of the same name."""
    free = {"input_nanousd": 0, "cached_input_nanousd": 0, "output_nanousd": 0}
    return [
        reserve("a1", organisation_id="acme", team_id="team_a", at_us=DAY),
        booked("a1", at_us=DAY),
        booked("a2", target_id="large", provider="openai", tag="red", at_us=DAY + DAY_US - 1),
        booked("a3", key_id="key_a2", tier="batch", at_us=DAY + DAY_US),
        booked("a4", served=False, status=502, cost_nanousd=None, baseline_nanousd=None, **free),
        booked("b1", team_id="team_b", key_id="key_b", usage_source="estimated"),
        idle("idle/h100/2026-04-05/1/1"),
        booked("r1", organisation_id="rival", team_id="team_r", key_id="key_r", target_id="rivals-model"),
        booked("r2", organisation_id="rival", team_id="team_a", key_id="key_r2", target_id="rivals-model"),
    ]


def many(count: int, seed: int = 7) -> list[Entry]:
    """Random attempts of acme and its rival over five days."""
    draw = random.Random(seed)
    return [
        booked(
            f"req_{number:05}",
            organisation_id=draw.choice(("acme", "acme", "rival")),
            team_id=draw.choice(("team_a", "team_b", "Team-Ä", "team_a'; --")),
            key_id=draw.choice(("key_1", "key_2")),
            target_id=draw.choice(("small", "large", "LARGE", "=1+1")),
            tier=draw.choice(("interactive", "batch")),
            tag=draw.choice(("", "red", "@blue")),
            at_us=DAY + draw.randrange(5 * DAY_US),
            cost_nanousd=draw.choice((None, draw.randrange(10**12))),
            baseline_nanousd=draw.choice((None, draw.randrange(10**12))),
        )
        for number in range(count)
    ]


async def keep(engine: AsyncEngine, entries: list[Entry]) -> None:
    """Writes entries the way the gateway does."""
    await LedgerStore(engine).insert(entries)
