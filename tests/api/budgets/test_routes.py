"""/v1/budgets over a socket: who sees and sets which, and what a hard budget does to the next request."""

import asyncio
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from tests.api.webhooks.receiver import SECRET
from tests.cost.entries import until
from tests.in_turn import in_turn
from tests.running_gateway import PEPPER, Running, model, running_gateway

SCRIPTED: list[dict[str, Any]] = [{"kind": "scripted", "upstream_model": "ok"}]
TEAM = {"scope": "team", "scope_id": "team_a", "period": "month", "limit_usd": 500}


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setenv("WEBHOOK_TEST_SECRET", SECRET)
    # Nobody listens there, and nothing is sent.
    finance = {"name": "finance", "url": "http://127.0.0.1:9/", "secret": "env:WEBHOOK_TEST_SECRET"}
    sections = {"cost": {"budgets": {"poll_s": 0.1}}, "webhooks": {"destinations": [finance]}}
    async with running_gateway(
        tmp_path, [model("dear", SCRIPTED)], classifier={"enabled": False}, **sections
    ) as running:
        yield running


async def key_of(gateway: Running, role: Any, team: str = "team_a") -> str:
    secret = PEPPER.encode()
    minted = await gateway.accounts.create_key(team, role, Pepper(id=pepper_id(secret), secret=secret), role=role)
    return minted.plaintext


async def call(
    gateway: Running, method: str, path: str, key: str | None = None, body: Any = None
) -> tuple[int, Any, dict[str, str]]:
    data = body if isinstance(body, str) or body is None else json.dumps(body)
    headers = {"authorization": f"Bearer {key or gateway.key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{gateway.base_url}{path}", headers=headers, data=data) as got,
    ):
        told = json.loads(await got.text(), parse_float=Decimal)
        return got.status, told, {name.lower(): value for name, value in got.headers.items()}


async def ask(gateway: Running) -> tuple[int, Any, dict[str, str]]:
    body = {"model": "dear", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    return await call(gateway, "POST", "/chat/completions", body=body)


async def test_an_admin_sets_changes_and_removes_a_budget(gateway: Running) -> None:
    """201 for a new one, 200 for a changed one; amounts are exact numbers; removing one twice is 404."""
    admin = await key_of(gateway, "admin")
    status, told, _ = await call(gateway, "PUT", "/budgets/b1", admin, TEAM | {"webhook": "finance"})
    assert (status, told["id"], told["limit_usd"], told["kind"], told["state"]) == (201, "b1", 500, "soft", "open")
    assert told["resets_at"].endswith("-01T00:00:00Z")
    body = json.dumps(TEAM).replace("500", "0.000000001")
    status, told, _ = await call(gateway, "PUT", "/budgets/b1", admin, body)
    assert (status, told["limit_usd"], told["webhook"]) == (200, Decimal("1E-9"), None)
    status, told, _ = await call(gateway, "DELETE", "/budgets/b1", admin)
    assert (status, told["deleted"]) == (200, True)
    status, told, _ = await call(gateway, "DELETE", "/budgets/b1", admin)
    assert (status, told["error"]["code"]) == (404, "budget_not_found")
    status, told, _ = await call(gateway, "PUT", "/budgets/b1", admin, TEAM | {"webhook": "finanse"})
    assert (status, told["error"]["param"]) == (400, "webhook")


@pytest.mark.parametrize("role", ["member", "finance"])
async def test_only_an_admin_changes_anything(gateway: Running, role: str) -> None:
    """A key cannot widen its own budget."""
    key = await key_of(gateway, role)
    for method, body in (("PUT", TEAM), ("DELETE", None)):
        status, told, _ = await call(gateway, method, "/budgets/b1", key, body)
        assert (status, told["error"]["code"]) == (403, "admin_only")
    assert (await call(gateway, "GET", "/budgets", "wb-nobody"))[0] == 401


@pytest.fixture
async def who_set_one(gateway: Running) -> str:
    """The key of an administrator who set the budget b1, where there is another organisation."""
    await gateway.accounts.create_organisation("other")
    await gateway.accounts.create_team("team_b", organisation_id="other")
    admin = await key_of(gateway, "admin")
    assert (await call(gateway, "PUT", "/budgets/b1", admin, TEAM))[0] == 201
    return admin


@in_turn(
    "body, status",
    [
        ("", 400),
        ("{}", 400),
        ("[]", 400),
        (TEAM | {"limit_usd": -1}, 400),
        (TEAM | {"limit_usd": "NaN"}, 400),
        (TEAM | {"limit_usd": True}, 400),
        (TEAM | {"period": "decade"}, 400),
        (TEAM | {"organisation_id": "other"}, 400),
        (TEAM | {"scope_id": "team_b"}, 400),
        (TEAM | {"scope_id": "team_nowhere"}, 400),
        (TEAM | {"scope": "key", "scope_id": "key_nowhere"}, 400),
        (TEAM | {"scope": "organisation", "scope_id": "other"}, 400),
        (TEAM | {"period": "day"}, 409),
        ("x" * 20_000, 413),
    ],
)
async def test_a_body_is_strict(gateway: Running, who_set_one: str, body: Any, status: int) -> None:
    """Unknown fields, other tenants, what is no amount, and another budget under the same id are refused."""
    got, told, _ = await call(gateway, "PUT", "/budgets/b1", who_set_one, body)
    assert (got, set(told["error"])) == (status, {"message", "type", "param", "code"})
    assert (await call(gateway, "PUT", "/budgets/..%2F", who_set_one, TEAM))[0] in {400, 404}


async def test_everybody_sees_his_own(gateway: Running) -> None:
    """A member its team's and its key's, finance all of its organisation, nobody another organisation's."""
    await gateway.accounts.create_organisation("other")
    await gateway.accounts.create_team("team_b", organisation_id="other")
    await gateway.accounts.create_team("team_c")
    admin = await key_of(gateway, "admin")
    for name, changes in {
        "mine": {},
        "org": {"scope": "organisation", "scope_id": "default"},
        "theirs": {"scope_id": "team_c"},
        "tag": {"scope": "tag", "scope_id": "search"},
    }.items():
        assert (await call(gateway, "PUT", f"/budgets/{name}", admin, TEAM | changes))[0] == 201

    async def seen(key: str | None = None) -> set[tuple[str, str]]:
        _, told, _ = await call(gateway, "GET", "/budgets", key)
        return {(each["id"], each["scope_id"]) for each in told["data"]}

    assert await seen() == {("mine", "team_a")}
    everything = {("mine", "team_a"), ("org", "default"), ("theirs", "team_c"), ("tag", "search")}
    assert await seen(await key_of(gateway, "finance")) == everything
    foreign = await key_of(gateway, "admin", "team_b")
    assert await seen(foreign) == set()
    assert (await call(gateway, "DELETE", "/budgets/mine", foreign))[0] == 404
    assert (await call(gateway, "PUT", "/budgets/mine", foreign, TEAM | {"scope_id": "team_b"}))[0] == 409


async def test_a_hard_budget_refuses_with_402(gateway: Running) -> None:
    """Within seconds of being set: whose it is, the limit, when it resets, and not to try again before."""
    assert (await ask(gateway))[0] == 200
    admin = await key_of(gateway, "admin")
    await call(gateway, "PUT", "/budgets/b1", admin, TEAM | {"kind": "hard", "limit_usd": "0.000000001"})
    holds = gateway.data.holds
    await until(lambda: holds._index)
    status, told, headers = await ask(gateway)
    assert (status, told["error"]["type"], told["error"]["code"]) == (402, "insufficient_quota", "budget_exceeded")
    assert "The monthly budget of team `team_a` ($0.000000001)" in told["error"]["message"]
    assert headers["x-should-retry"] == "false"
    assert headers["x-weighbridge-budget-reset"].endswith("-01T00:00:00Z")
    assert int(headers["retry-after"]) > 0
    await call(gateway, "PUT", "/budgets/b1", admin, TEAM | {"kind": "hard", "limit_usd": 500})
    # The new limit, not the old one before anything is known to be spent.
    await until(
        lambda: all(
            local.budget.limit_nanousd > 1 and not local.is_spent(holds.now_us()) for local in holds._budgets.values()
        )
    )
    assert (await ask(gateway))[0] == 200
    await gateway.rows()
    _, told, _ = await call(gateway, "GET", "/budgets")
    assert told["data"][0]["spent_usd"] > 0
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.url}/metrics") as got:
        text = await got.text()
    assert 'weighbridge_budget_limit_usd{budget_id="b1"} 500.0' in text
    assert 'weighbridge_budget_refusals_total{scope="team"}' in text


async def test_a_crowd_of_callers_overruns_nothing(gateway: Running) -> None:
    """Through the whole gateway: some are served, the others get 402, and what is booked is within the limit."""
    admin = await key_of(gateway, "admin")
    assert (await call(gateway, "PUT", "/budgets/b1", admin, TEAM | {"kind": "hard", "limit_usd": "0.005"}))[0] == 201
    holds = gateway.data.holds
    await until(lambda: holds._index)
    statuses = [status for status, _, _ in await asyncio.gather(*(ask(gateway) for _ in range(60)))]
    assert set(statuses) == {200, 402}
    await gateway.rows()
    _, told, _ = await call(gateway, "GET", "/budgets")
    assert 0 < told["data"][0]["spent_usd"] <= Decimal("0.005")
    assert holds._open == {}
