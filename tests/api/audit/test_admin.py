"""GET /v1/admin/audit over a socket."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.audit.verify import verify_lines
from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from tests.in_turn import in_turn
from tests.running_gateway import PEPPER, Running, model, running_gateway

ANNA = Actor(kind="person", actor_id="person_anna", name="Anna", organisation_id="default", address="203.0.113.9")
THEIRS = Actor(kind="key", actor_id="key_eve", name="Eve", organisation_id="acme")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    models = [model("small", [{"kind": "scripted", "upstream_model": "ok"}])]
    async with running_gateway(tmp_path, models) as running:
        log = AuditLog(running.engine)
        for each in range(1, 6):
            await log.note(THEIRS if each == 3 else ANNA, "key.created", "key", f"key_{each}", after={"name": "=1+1"})
        yield running


async def key_of(gateway: Running, role: Any) -> str:
    secret = PEPPER.encode()
    minted = await gateway.accounts.create_key("team_a", role, Pepper(id=pepper_id(secret), secret=secret), role=role)
    return minted.plaintext


async def ask(gateway: Running, query: str, key: str | None) -> tuple[int, bytes]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{gateway.base_url}/admin/audit{query}", headers=headers) as reply,
    ):
        return reply.status, await reply.read()


async def test_pages_of_ones_own_entries(gateway: Running) -> None:
    """The newest first, those of another organisation left out, on to the last."""
    key = await key_of(gateway, "finance")
    numbers, before = [], ""
    while True:
        status, body = await ask(gateway, f"?limit=2{before}", key)
        assert status == 200
        page = json.loads(body)
        numbers += [each["number"] for each in page["data"]]
        if page["next_before"] is None:
            break
        before = f"&before={page['next_before']}"
    assert numbers == [5, 4, 2, 1]
    assert page["data"][-1]["actor"] == {
        "kind": "person",
        "id": "person_anna",
        "name": "Anna",
        "address": "203.0.113.9",
    }
    assert (page["data"][-1]["before"], page["data"][-1]["after"]) == (None, {"name": "=1+1"})


async def test_whole_files(gateway: Running) -> None:
    """As CSV without a formula, and as NDJSON that can be verified as the part that it is."""
    key = await key_of(gateway, "admin")
    status, body = await ask(gateway, "?format=ndjson", key)
    lines = body.splitlines()
    assert (status, len(lines), verify_lines(lines, part=True).sound) == (200, 4, True)
    assert not verify_lines([line.replace(b"key_2", b"key_9") for line in lines], part=True).sound
    status, body = await ask(gateway, "?format=csv&object=key_2", key)
    heading, row = body.decode().splitlines()
    assert heading.split(",")[0] == "number"
    assert row.startswith("2,")
    status, body = await ask(gateway, "?format=csv&limit=2", key)
    assert [line.split(",")[0] for line in body.decode().splitlines()] == ["number", "1", "2"]


@in_turn(
    "query",
    [
        "?limit=0",
        "?limit=501",
        "?before=x",
        "?before=3&format=csv",
        "?before=-1",
        "?format=xml",
        "?from=1",
        "?actors=x",
        "?to=%00",
    ],
)
async def test_what_cannot_be_meant_is_refused(gateway: Running, query: str) -> None:
    """With the parameter's name, also where it is misspelt: a filter that nobody applies would show too much."""
    status, body = await ask(gateway, query, await key_of(gateway, "admin"))
    assert (status, json.loads(body)["error"]["param"]) == (400, query[1:].partition("=")[0])


async def test_only_who_may_reads_it(gateway: Running) -> None:
    """No member's key, and nobody without one."""
    assert (await ask(gateway, "", None))[0] == 401
    assert (await ask(gateway, "", gateway.key))[0] == 403
    assert (await ask(gateway, "?format=csv", gateway.key))[0] == 403
