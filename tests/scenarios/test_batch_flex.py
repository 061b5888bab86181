"""Lines of batches in the service tier flex of a provider that sells it, and what becomes of them where it has no room."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cost.price_book.litellm_table import read_table
from tests.providers.wires import provider
from tests.running_gateway import running_gateway
from tests.scenarios.test_batch import FAST, client, ended, line, submit
from tests.scenarios.test_model_facts import answer, bare, whole

SECTION: dict[str, Any] = {**FAST, "flex": True}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADE_UP_KEY", "made-up")


async def full(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Has no room in flex, as OpenAI says it; answers everything else."""
    if body.get("service_tier") == "flex":
        error = {"message": "Resource unavailable", "type": "resource_unavailable", "code": "resource_unavailable"}
        return web.json_response({"error": error}, status=429, headers={"retry-after": "0"})
    return web.json_response(answer(body))


async def test_lines_with_time_to_spare_are_answered_and_booked_in_flex(tmp_path: Path) -> None:
    """All but the one that names a service tier itself."""
    price = read_table().price("gpt-5")
    assert price is not None
    assert price.flex is not None
    asked = [*(line(f"q{number}", "gpt-5") for number in range(5)), line("own", "gpt-5", service_tier="default")]
    async with (
        provider(whole) as served,
        running_gateway(tmp_path, [bare("gpt-5", served)], batch=SECTION) as gateway,
        client(gateway) as caller,
    ):
        batch = await ended(caller, await submit(caller, asked, completion_window="background"))
        rows = await gateway.rows("entry = 'settle'")
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 6
    assert Counter(body.get("service_tier") for body in served.bodies) == {"flex": 5, None: 1}
    flex, usual = price.flex.tokens_nanousd(1_000, 100), price.tokens_nanousd(1_000, 100)
    assert flex < usual
    assert Counter(row["cost_nanousd"] for row in rows) == {flex: 5, usual: 1}
    assert Counter(row["batch_saved_nanousd"] for row in rows) == {usual - flex: 5, 0: 1}


async def test_a_line_that_flex_has_no_room_for_is_answered_in_the_usual_tier(tmp_path: Path) -> None:
    """And costs what that costs, once."""
    price = read_table().price("gpt-5")
    assert price is not None
    async with (
        provider(full) as served,
        running_gateway(tmp_path, [bare("gpt-5", served)], batch=SECTION) as gateway,
        client(gateway) as caller,
    ):
        batch = await ended(caller, await submit(caller, [line("q", "gpt-5")], completion_window="background"))
        rows = await gateway.rows("entry = 'settle'")
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 1
    assert "flex" in {body.get("service_tier") for body in served.bodies}
    assert "service_tier" not in served.bodies[-1]
    assert sum(row["cost_nanousd"] for row in rows) == price.tokens_nanousd(1_000, 100)
