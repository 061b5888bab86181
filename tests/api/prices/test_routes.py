"""/v1/prices over a socket: who sees what, who may change it, and what a changed price does to the next request."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from accounts.audit.log import AuditLog, Scope
from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from tests.running_gateway import PEPPER, Running, model, running_gateway

SCRIPTED: list[dict[str, Any]] = [{"kind": "scripted", "upstream_model": "ok"}]
LONG = [{"above_tokens": 1_000, "input": 4, "output": 20, "cached_input": 2}]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    """Three targets: priced, priced from the future on, and without a price."""
    prices = {"input": "2.5", "output": 10, "cached_input": "1.25", "version": "v1", "long_prompts": LONG}
    later = {"input": 1, "output": 1, "effective_from": "2999-01-01"}
    models = [
        model("plain", SCRIPTED, prices=prices),
        model("meta/later", SCRIPTED, prices=[later]),
        model("own", SCRIPTED, prices=None),
    ]
    async with running_gateway(tmp_path, models, classifier={"enabled": False}) as running:
        yield running


async def key_of(gateway: Running, role: Any, team: str = "team_a") -> str:
    """A fresh key of a role."""
    secret = PEPPER.encode()
    minted = await gateway.accounts.create_key(team, role, Pepper(id=pepper_id(secret), secret=secret), role=role)
    return minted.plaintext


async def call(gateway: Running, method: str, path: str, key: str | None = None, body: Any = None) -> tuple[int, Any]:
    """`body` is sent as JSON; text goes as it is."""
    data = body if isinstance(body, str) or body is None else json.dumps(body)
    headers = {"authorization": f"Bearer {key or gateway.key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{gateway.base_url}{path}", headers=headers, data=data) as got,
    ):
        return got.status, await got.json()


async def listed(gateway: Running, key: str | None = None) -> dict[str, Any]:
    status, told = await call(gateway, "GET", "/prices", key)
    assert status == 200
    return {each["target"]: each for each in told["data"]}


async def cost_of_a_request(gateway: Running, target: str) -> str | None:
    """In dollars, as the reply says."""
    body = {"model": target, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {gateway.key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.base_url}/chat/completions", headers=headers, json=body) as got,
    ):
        assert got.status == 200, await got.text()
        return got.headers.get("x-weighbridge-cost-usd")


async def test_a_team_sees_the_prices_of_what_it_may_use(gateway: Running) -> None:
    """With their source and date, what is to come, and null for what is unknown; never 0."""
    found = await listed(gateway)
    assert list(found) == ["plain", "meta/later", "own"]
    plain = found["plain"]
    assert (plain["version"], plain["source"], plain["effective_from"]) == ("v1", "config", None)
    assert plain["usd_per_million_tokens"]["input"] == "2.5"
    assert plain["long_prompts"][0]["above_tokens"] == 1_000
    assert plain["long_prompts"][0]["usd_per_million_tokens"]["cached_input"] == "2"
    assert found["own"]["usd_per_million_tokens"] is None
    assert found["meta/later"]["version"] is None
    assert [each["effective_from"] for each in found["meta/later"]["upcoming"]] == ["2999-01-01"]
    await gateway.accounts.create_team("team_b", allowed_models=["own"])
    assert list(await listed(gateway, await key_of(gateway, "member", "team_b"))) == ["own"]
    assert (await call(gateway, "GET", "/prices", "wb-nobody"))[0] == 401


async def test_an_entered_price_holds_from_the_next_request_on(
    gateway: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """It is booked under its version, it can be taken back, and the log says who did that."""
    caplog.set_level(logging.WARNING, "weighbridge.audit")
    admin = await key_of(gateway, "admin")
    before = await cost_of_a_request(gateway, "plain")
    status, told = await call(gateway, "PUT", "/prices/plain", admin, {"input": "250", "output": 1000, "note": "why"})
    assert (status, told["source"], told["note"]) == (200, "override", "why")
    assert (await listed(gateway))["plain"]["version"] == told["version"]
    assert (await call(gateway, "PUT", "/prices/plain", admin, {"input": "250", "output": 1000, "note": "why"}))[
        1
    ] == told
    assert await cost_of_a_request(gateway, "plain") != before
    status, gone = await call(gateway, "DELETE", f"/prices/plain/{told['version']}", admin)
    assert (status, gone["withdrawn"]) == (200, True)
    assert await cost_of_a_request(gateway, "plain") == before
    versions = [row["price_version"] for row in await gateway.rows("entry = 'settle'")]
    assert versions == ["v1", told["version"], "v1"]
    said = [record.getMessage() for record in caplog.records if record.name == "weighbridge.audit"]
    # The same price entered twice is one change.
    assert [f"plain {told['version']}" in message and ": key key_" in message for message in said] == [True] * 2
    entries = await AuditLog(gateway.engine).page(Scope(organisation_id="default"))
    assert [entry.action for entry in entries] == ["price.withdrawn", "price.set"]
    assert {entry.actor_name for entry in entries} == {"admin"}
    assert admin not in "".join(said)


async def test_a_target_without_a_price_gets_one(gateway: Running) -> None:
    """Also one with a slash in its name; exact figures, tiers and batches come back as they were sent."""
    admin = await key_of(gateway, "admin")
    body = '{"input": 0.1, "output": 0.30000000, "long_prompts": [{"above_tokens": 9, "input": 1, "output": 2}], "batch_discount": 0.5}'
    for target in ("own", "meta/later"):
        status, told = await call(gateway, "PUT", f"/prices/{target}", admin, body)
        assert (status, told["target"]) == (200, target)
        assert told["usd_per_million_tokens"]["input"] == "0.1"
        assert told["batch"]["long_prompts"][0]["usd_per_million_tokens"]["output"] == "1"
        assert (await listed(gateway))[target]["version"] == told["version"]
        assert (await call(gateway, "DELETE", f"/prices/{target}/{told['version']}", admin))[0] == 200
        assert (await listed(gateway))[target]["version"] is None


async def test_only_an_administrator_changes_prices(gateway: Running) -> None:
    """Everybody else is told which role it takes, and nothing changes."""
    for role in ("member", "finance"):
        key = await key_of(gateway, role)
        status, told = await call(gateway, "PUT", "/prices/plain", key, {"input": 1, "output": 1})
        assert (status, "role admin" in told["error"]["message"]) == (403, True)
        assert (await call(gateway, "DELETE", "/prices/plain/v1", key))[0] == 403
        assert (await listed(gateway, key))["plain"]["version"] == "v1"


async def test_an_admin_of_another_organisation_sets_no_prices(gateway: Running) -> None:
    """Prices hold for everybody, so a tenant's admin must not make everybody's cheap; the operator's may."""
    await gateway.accounts.create_organisation("acme")
    await gateway.accounts.create_team("team_x", organisation_id="acme")
    tenant, operator = await key_of(gateway, "admin", "team_x"), await key_of(gateway, "admin")
    price = {"input": "0.000001", "output": "0.000001", "version": "mine"}
    for method, path, body in (("PUT", "/prices/plain", price), ("DELETE", "/prices/plain/theirs", None)):
        status, told = await call(gateway, method, path, tenant, body)
        assert (status, told["error"]["code"]) == (403, "operator_only")
    assert (await listed(gateway, tenant))["plain"]["version"] == "v1"
    assert (await call(gateway, "PUT", "/prices/plain", operator, price))[0] == 200
    assert (await call(gateway, "DELETE", "/prices/plain/mine", tenant))[0] == 403
    assert (await listed(gateway, tenant))["plain"]["version"] == "mine"


async def test_what_is_no_price_is_refused(gateway: Running) -> None:
    """In OpenAI's shape, naming the field; nothing changes."""
    admin = await key_of(gateway, "admin")
    bad = [("{", None), ('{"input": -1, "output": 1}', "input"), ('{"input": 1, "output": 1, "price": 1}', "price")]
    for body, param in bad:
        status, told = await call(gateway, "PUT", "/prices/plain", admin, body)
        assert (status, told["error"]["param"]) == (400, param)
        assert set(told["error"]) == {"message", "type", "param", "code"}
    assert (await listed(gateway))["plain"]["version"] == "v1"


async def test_what_is_not_there_is_told(gateway: Running) -> None:
    """Unknown targets and versions, configured prices, and bodies that nobody needs."""
    admin = await key_of(gateway, "admin")
    status, told = await call(gateway, "PUT", "/prices/nobody", admin, {"input": 1, "output": 1})
    assert (status, told["error"]["code"]) == (404, "model_not_found")
    status, told = await call(gateway, "DELETE", "/prices/plain/v9", admin)
    assert (status, told["error"]["code"]) == (404, "price_not_found")
    status, told = await call(gateway, "DELETE", "/prices/plain/v1", admin)
    assert (status, "comes from config" in told["error"]["message"]) == (400, True)
    assert (await call(gateway, "PUT", "/prices/plain", admin, "x" * 70_000))[0] == 413


async def test_a_reload_keeps_what_was_entered(gateway: Running) -> None:
    """The configured price beneath it changes, the entered one stays in effect."""
    admin = await key_of(gateway, "admin")
    _, told = await call(gateway, "PUT", "/prices/plain", admin, {"input": 7, "output": 7})
    gateway.config_path.write_text(gateway.config_path.read_text().replace("'2.5'", "'3.5'"))
    gateway.reload()
    assert (await listed(gateway))["plain"]["version"] == told["version"]
    await call(gateway, "DELETE", f"/prices/plain/{told['version']}", admin)
    plain = (await listed(gateway))["plain"]
    assert plain["usd_per_million_tokens"]["input"] == "3.5"
    # The name stood for other figures before, so it has got another.
    assert plain["version"].startswith("v1~")
