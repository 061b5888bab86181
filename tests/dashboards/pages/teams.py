"""A gateway with two organisations' teams, and what they asked lately."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from cost.times import DAY_US, wall_us
from tests.cost.entries import settle
from tests.running_gateway import CHEAP_PRICES, Running, model, running_gateway

OUR_OWN = {"kind": "scripted", "upstream_model": "ok"}
EVIL = "<script>alert(1)</script>"


@contextlib.asynccontextmanager
async def running_teams(folder: Path, **sections: Any) -> AsyncIterator[Running]:
    """`team_a` and `team_b` of one organisation, `fjord-lab` of another; the larger model is the reference."""
    models = [
        model("large", [OUR_OWN], ability="gpt-4o-2024-05-13"),
        model("small", [OUR_OWN], prices=CHEAP_PRICES, ability="llama-3-70b-instruct", capability=0.5),
    ]
    cost = {"reference_target": "large", **sections.pop("cost", {})}
    async with running_gateway(folder, models, cost=cost, **sections) as running:
        await running.accounts.create_team("team_b", EVIL)
        await running.accounts.create_organisation("fjord", "Fjord")
        await running.accounts.create_team("fjord-lab", "Lab", organisation_id="fjord")
        yield running


def asked(request_id: str, **changes: Any) -> Entry:
    """An answer that team A's caller got today, or when the changes say."""
    usual: dict[str, Any] = {
        "team_id": "team_a",
        "target_id": "small",
        "provider": "scripted",
        "reason": "cheapest-capable",
        "at_us": wall_us(),
        "served": True,
        "baseline_price": "large@test",
        "cost_nanousd": 1_000_000,
        "input_nanousd": 600_000,
        "output_nanousd": 400_000,
    }
    return settle(request_id, **{**usual, **changes})


def month(count: int = 60) -> list[Entry]:
    """Two requests a day, an easy one and a hard one."""
    now_us = wall_us()
    entries = []
    for number in range(count):
        hard = number % 2 == 1
        entries.append(
            asked(
                f"req_{number:03}",
                at_us=now_us - number // 2 * DAY_US,
                target_id="large" if hard else "small",
                complexity=0.8 if hard else 0.2,
                cost_nanousd=4_000_000 if hard else 1_000_000,
                tag="red" if hard else "",
            )
        )
    return entries


async def keep(running: Running, entries: list[Entry]) -> None:
    """Writes entries as the gateway does."""
    await LedgerStore(running.engine).insert(entries)
