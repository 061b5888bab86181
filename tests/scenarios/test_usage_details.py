"""Counts that have a price of their own, from the upstream's report to the ledger."""

import logging
from pathlib import Path
from typing import Any, Final

import pytest

from tests.providers.wires import LITELLM_WARNINGS, provider
from tests.running_gateway import DEAR_PRICES, running_gateway
from tests.scenarios.test_lying_upstreams import booked, secrets, telling
from tests.scenarios.test_model_facts import ASK, bare, client

__all__ = ["secrets"]
pytestmark = LITELLM_WARNINGS

TOLD: Final = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
TOKENS_NANOUSD: Final = 75_000
"""10 tokens at 2.5 and 5 at 10 dollars a million."""
FLAT: Final[Any] = {**DEAR_PRICES, "tool_calls": {"web_search": "0.025"}}
BY_SIZE: Final[Any] = {**DEAR_PRICES, "tool_calls": {"web_search_low": "0.005", "web_search_high": "0.012"}}


@pytest.mark.parametrize(
    ("prices", "options", "usage", "searches", "flags"),
    [
        (FLAT, {}, {}, 25_000_000, "[]"),
        (FLAT, {"search_context_size": "high"}, {}, 25_000_000, "[]"),
        (FLAT, None, {}, 0, "[]"),
        (FLAT, {}, {"num_search_queries": 3}, 75_000_000, "[]"),
        (BY_SIZE, {"search_context_size": "high"}, {}, 12_000_000, "[]"),
        (BY_SIZE, {"search_context_size": "low"}, {}, 5_000_000, "[]"),
        (BY_SIZE, {}, {}, 0, '["tool_calls_unpriced"]'),
        (DEAR_PRICES, {}, {}, 0, '["tool_calls_unpriced"]'),
    ],
)
async def test_a_search_on_chat_has_its_price(
    tmp_path: Path, prices: Any, options: dict[str, Any] | None, usage: dict[str, Any], searches: int, flags: str
) -> None:
    """One for each answer where nobody tells how many; without a price, the row says so."""
    async with provider(telling({**TOLD, **usage})) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=prices)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            more: Any = {} if options is None else {"web_search_options": options}
            await ask.chat.completions.create(model="some-model", messages=ASK, **more)
            row = await booked(gateway)
    assert (row["cost_nanousd"], row["flags"]) == (TOKENS_NANOUSD + searches, flags)


async def test_a_model_that_searches_unasked_has_its_search_booked(tmp_path: Path) -> None:
    """OpenAI's models for searching bill one for each answer, whatever was asked for."""
    async with provider(telling(TOLD)) as served:
        entry = bare("gpt-4o-search-preview", served, prices=FLAT)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await ask.chat.completions.create(model="gpt-4o-search-preview", messages=ASK)
            row = await booked(gateway)
    assert (row["cost_nanousd"], row["flags"]) == (TOKENS_NANOUSD + 25_000_000, "[]")


async def test_an_unknown_count_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the row, and once in the log."""
    usage = {**TOLD, "completion_tokens_details": {"agent_tokens": 3}}
    async with provider(telling(usage)) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            with caplog.at_level(logging.WARNING):
                for _ in range(2):
                    await ask.chat.completions.create(model="some-model", messages=ASK)
                row = await booked(gateway)
    assert (row["cost_nanousd"], row["flags"]) == (TOKENS_NANOUSD, '["usage_detail_unknown"]')
    told = [fields for record in caplog.records if "usage_detail" in (fields := record.__dict__.get("fields", {}))]
    assert [fields["usage_detail"] for fields in told] == ["completion_tokens_details.agent_tokens"]
