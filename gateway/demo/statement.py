"""A made-up OpenAI billing export: the ledger's figures, except for two days that differ."""

import json
from collections.abc import Sequence
from datetime import date
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from cost.prices import usd
from cost.reconcile.ledger_side import booked, posting_alone
from cost.reconcile.matching import Matching, OurRow, compare
from cost.reconcile.openai import read_openai
from cost.reconcile.posting import entries_of, posting_id
from cost.reconcile.statement import COST_METERS
from cost.times import DAY_US, start_of
from gateway.demo.company import MINI, REFERENCE

_PROVIDER: Final = "openai"
_US: Final = 1_000_000
_MORE_PERCENT: Final = {3: 4, 9: 2}
"""Percent by which the statement's output exceeds the ledger's, by day number: an unreported retry."""


async def reconcile_with_statement(engine: AsyncEngine, first: date, last: date, now_us: int) -> str:
    """Reconcile the ledger with the statement of these days and post the differences; return the posting's id."""
    matching = Matching(upstream_models={REFERENCE: (REFERENCE,), MINI: (MINI,)})
    async with posting_alone(engine) as connection:
        rows = await booked(
            connection,
            first_day_us=start_of(first),
            last_day_us=start_of(last),
            providers={_PROVIDER},
            organisation_id=None,
        )
        statement = read_openai(_exports(rows, start_of(first), start_of(last)))
        found = compare(statement, rows, matching, first=first, last=last)
        posting = posting_id(statement, matching, found)
        await LedgerStore(engine).insert_within(connection, entries_of(found, posting, now_us))
    return posting


def _exports(rows: Sequence[OurRow], first_us: int, last_us: int) -> list[tuple[str, bytes]]:
    """Build a page of `GET /v1/organization/usage/completions` and one of `/costs`, with one bucket a day."""
    usage, costs = [], []
    for number, day_us in enumerate(range(first_us, last_us + 1, DAY_US)):
        more = _MORE_PERCENT.get(number, 0)
        by_model = {
            model: [row for row in rows if row.day_us == day_us and row.target_id == model]
            for model in (REFERENCE, MINI)
        }
        bucket = {"object": "bucket", "start_time": day_us // _US, "end_time": (day_us + DAY_US) // _US}
        usage.append({**bucket, "results": [_usage(model, mine, more) for model, mine in by_model.items() if mine]})
        costs.append(
            {**bucket, "results": [each for model, mine in by_model.items() for each in _costs(model, mine, more)]}
        )
    return [("usage.json", _page(usage)), ("costs.json", _page(costs))]


def _page(buckets: list[dict[str, Any]]) -> bytes:
    return json.dumps({"object": "page", "data": buckets, "has_more": False, "next_page": None}).encode()


def _usage(model: str, rows: Sequence[OurRow], more_percent: int) -> dict[str, Any]:
    fresh, cached, written, written_1h, output = (sum(row.tokens[place] for row in rows) for place in range(5))
    return {
        "object": "organization.usage.completions.result",
        "model": model,
        "input_tokens": fresh + cached + written + written_1h,
        "input_cached_tokens": cached,
        "output_tokens": output + output * more_percent // 100,
        "num_model_requests": sum(row.attempts for row in rows),
    }


def _costs(model: str, rows: Sequence[OurRow], more_percent: int) -> list[dict[str, Any]]:
    items = {"input": "input", "cached_input": "cached input", "output": "output"}
    found = []
    for meter, item in items.items():
        amount = sum(row.meters[COST_METERS.index(meter)] for row in rows)
        amount += amount * more_percent // 100 if meter == "output" else 0
        if amount:
            told = {"value": f"{usd(amount):f}", "currency": "usd"}
            found.append({"object": "organization.costs.result", "line_item": f"{model}, {item}", "amount": told})
    return found
