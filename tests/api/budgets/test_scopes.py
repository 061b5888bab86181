"""Budgets of end users, models and providers over a socket: what a caller is told, and where a request goes instead."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from tests.api.budgets.test_routes import SCRIPTED, call, key_of
from tests.cost.entries import until
from tests.running_gateway import CHEAP_PRICES, Running, model, running_gateway

TINY = 0.000000001
LARGE = 500
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    models = [
        model("dear", SCRIPTED, provider="east"),
        model("cheap", SCRIPTED, provider="west", prices=CHEAP_PRICES),
    ]
    aliases = {"first-dear": ["dear", "cheap"]}
    async with running_gateway(
        tmp_path, models, cost={"budgets": {"poll_s": 0.1}}, limits={"poll_s": 0.1}, policy={"aliases": aliases}
    ) as running:
        yield running


async def set_budget(gateway: Running, name: str, scope: str, scope_id: str, limit: float, **more: Any) -> None:
    """A hard monthly budget, as an administrator's key sets it, that this gateway knows."""
    body = {"scope": scope, "scope_id": scope_id, "period": "month", "limit_usd": limit, "kind": "hard", **more}
    status, told, _ = await call(gateway, "PUT", f"/budgets/{name}", await key_of(gateway, "admin"), body)
    assert (status, told["scope_id"]) == (201, scope_id), told
    await gateway.data.holds.poll()


async def ask(gateway: Running, name: str = "dear", **more: Any) -> tuple[int, Any, dict[str, str]]:
    body = {"model": name, "messages": HELLO, "max_tokens": 10, **more}
    return await call(gateway, "POST", "/chat/completions", body=body)


async def test_each_end_user_is_held_to_the_teams_default(gateway: Running) -> None:
    """402 names the end user; another field names the same one, a named one's own budget goes first, and nobody's is unbounded."""
    await set_budget(gateway, "each", "end_user", "team_a/*", TINY)
    await set_budget(gateway, "ada", "end_user", "team_a/ada", LARGE)
    status, told, headers = await ask(gateway, user="bob")
    assert (status, told["error"]["code"], headers["x-should-retry"]) == (402, "budget_exceeded", "false")
    assert "The monthly budget of end user `bob` of team `team_a` ($0.000000001)" in told["error"]["message"]
    assert (await ask(gateway, safety_identifier="bob", user="ada"))[0] == 402
    assert (await ask(gateway, user="ada"))[0] == 200
    assert (await ask(gateway))[0] == 200


async def test_the_messages_api_names_an_end_user_in_its_metadata(gateway: Running) -> None:
    """`metadata.user_id` counts as `user` does, without the session that a client writes behind it."""
    await set_budget(gateway, "each", "end_user", "*", LARGE)
    await set_budget(gateway, "bob", "end_user", "team_a/bob", TINY)
    for user_id, status in (
        ("bob", 402),
        ("bob_session_1", 402),
        ('{"device_id":"bob","session_id":"2"}', 402),
        ("eve", 200),
    ):
        body = {"model": "dear", "messages": HELLO, "max_tokens": 10, "metadata": {"user_id": user_id}}
        assert (await call(gateway, "POST", "/messages", body=body))[0] == status, user_id


@pytest.mark.parametrize(
    ("scope", "scope_id", "words"),
    [
        ("model", "dear", "model `dear`"),
        ("provider", "east", "provider `east`"),
        ("team_model", "team_a/dear", "model `dear` of team `team_a`"),
        ("team_provider", "team_a/east", "provider `east` of team `team_a`"),
    ],
)
async def test_a_spent_target_is_passed_over(gateway: Running, scope: str, scope_id: str, words: str) -> None:
    """The hold refuses while room is left for less, planning once none is: an alias goes on, and who named it is told whose it is."""
    await set_budget(gateway, "b", scope, scope_id, 0.001)
    status, _, headers = await ask(gateway, "first-dear")
    assert (status, headers["x-weighbridge-target"]) == (200, "dear")
    refusals = 0
    # What is held for a request is more than it costs, so that one may fit again once the last ones are booked.
    while refusals < 2:
        if (await ask(gateway, "dear"))[0] == 200:
            refusals = 0
        else:
            refusals += 1
            await until(lambda: not gateway.data.holds._unbooked)
            await gateway.data.holds.poll()
    status, _, headers = await ask(gateway, "first-dear")
    assert (status, headers["x-weighbridge-target"]) == (200, "cheap")
    status, told, _ = await ask(gateway, "dear")
    assert (status, told["error"]["code"]) == (402, "budget_exceeded")
    assert f"The monthly budget of {words} ($0.001)" in told["error"]["message"]
    # Now what is booked alone fills it, as for a budget that was lowered.
    admin = await key_of(gateway, "admin")
    body = {"scope": scope, "scope_id": scope_id, "period": "month", "limit_usd": TINY, "kind": "hard"}
    assert (await call(gateway, "PUT", "/budgets/b", admin, body))[0] == 200
    await until(lambda: not gateway.data.holds._unbooked)
    await gateway.data.holds.poll()
    status, told, _ = await ask(gateway, "dear")
    assert (status, "is used up" in told["error"]["message"]) == (402, True)
    for name in ("first-dear", "auto"):
        status, _, headers = await ask(gateway, name)
        assert (status, headers["x-weighbridge-target"]) == (200, "cheap")
    await until(lambda: gateway.data.holds._open == {})


async def test_a_spent_model_is_replaced_where_its_owner_wants_that(gateway: Running) -> None:
    """`downgrade`: who names it gets the cheapest capable one, and is told."""
    await set_budget(gateway, "b", "team_model", "team_a/dear", TINY, on_exhausted="downgrade")
    status, _, headers = await ask(gateway, "dear")
    assert (status, headers["x-weighbridge-target"], headers["x-weighbridge-downgraded"]) == (200, "cheap", "budget")


@pytest.mark.parametrize(
    ("scope", "scope_id", "words"),
    [
        ("end_user", "bob", "TEAM/END_USER"),
        ("team_model", "gpt-4o", "TEAM/MODEL"),
        ("team_model", "team_a/*", "name one"),
        ("end_user", "nowhere/bob", "no team"),
        ("customer", "bob", "Invalid enum value"),
    ],
)
async def test_a_wrong_id_is_answered_with_the_right_form(
    gateway: Running, scope: str, scope_id: str, words: str
) -> None:
    """The caller is told what to write."""
    body = {"scope": scope, "scope_id": scope_id, "period": "month", "limit_usd": 5}
    status, told, _ = await call(gateway, "PUT", "/budgets/b", await key_of(gateway, "admin"), body)
    assert status == 400
    assert words in told["error"]["message"]


async def test_a_mistyped_model_or_provider_is_refused(gateway: Running) -> None:
    """By both APIs, for budgets and limits, with the names that were probably meant; nothing is kept."""
    admin = await key_of(gateway, "admin")
    limit = {"requests_per_minute": 1}
    for place, scope_id, said in (
        ("model", "daer", "no model `daer`; did you mean `dear`"),
        ("team_model", "team_a/first-dear", "is an alias"),
        ("provider", "eats", "no provider `eats`; did you mean `east`"),
        ("team_provider", "team_a/*", "name one"),
    ):
        body = {"scope": place, "scope_id": scope_id, "period": "month", "limit_usd": 5}
        for path in ("/budgets/b", "/admin/budgets/b"):
            status, told, _ = await call(gateway, "PUT", path, admin, body)
            assert (status, said in told["error"]["message"]) == (400, True), told
    for path in ("model/daer", "team/team_a?model=daer"):
        status, told, _ = await call(gateway, "PUT", f"/admin/limits/{path}", admin, limit)
        assert (status, told["error"]["param"], "`dear`" in told["error"]["message"]) == (400, "model", True)
    for path in ("/budgets", "/admin/limits"):
        assert (await call(gateway, "GET", path, admin))[1]["data"] == []


async def test_a_budget_of_what_went_can_still_be_changed(gateway: Running) -> None:
    """Its target left the configuration: another amount is taken, and whoever sets all budgets again is not refused."""
    gone = Budget(
        budget_id="gone",
        organisation_id="default",
        scope="model",
        scope_id="default/gone",
        period="month",
        kind="hard",
        limit_nanousd=1,
    )
    await BudgetStore(gateway.engine).put(gone)
    body = {"scope": "model", "scope_id": "gone", "period": "month", "limit_usd": 5, "kind": "hard"}
    assert (await call(gateway, "PUT", "/budgets/gone", await key_of(gateway, "admin"), body))[0] == 200


async def test_an_end_users_limit_is_set_over_the_admin_api(gateway: Running) -> None:
    """429 for the one that has it, by the address that the operator knows; removing it ends that."""
    admin = await key_of(gateway, "admin")
    place = "/admin/limits/end_user/team_a/ada@example.com"
    status, told, _ = await call(gateway, "PUT", place, admin, {"requests_per_minute": 1})
    assert (status, told["scope"]) == (201, "end_user")
    assert told["scope_id"].startswith("team_a/digest-")
    async with asyncio.timeout(20):
        while (await ask(gateway, user="ada@example.com"))[0] == 200:
            pass
    status, told, _ = await ask(gateway, user="ada@example.com")
    assert (status, told["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "end user `digest-" in told["error"]["message"]
    assert (await ask(gateway, user="bob"))[0] == 200
    status, told, _ = await call(gateway, "PUT", "/admin/limits/end_user/ada", admin, {"requests_per_minute": 1})
    assert (status, "TEAM/END_USER" in told["error"]["message"]) == (400, True)
    status, told, _ = await call(
        gateway, "PUT", "/admin/limits/end_user/nowhere/ada", admin, {"requests_per_minute": 1}
    )
    assert (status, "nowhere" in told["error"]["message"]) == (400, True)
    assert (await call(gateway, "DELETE", place, admin))[0] == 200
