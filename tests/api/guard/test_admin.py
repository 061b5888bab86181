"""/v1/admin/guard over a socket: what is set holds for the next requests, and for nobody else."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.admin_api.calls import SCRIPTED, call, globex, key_of
from tests.running_gateway import Running, model, running_gateway

RULE: dict[str, Any] = {"name": "project", "kind": "words", "words": ["bluebird"], "input": "block"}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    # A key is looked up anew with each request or two.
    async with running_gateway(tmp_path, [model("dear", SCRIPTED)], accounts={"fresh_s": 1}) as running:
        yield running


async def asked(gateway: Running, key: str) -> int:
    body = {"model": "dear", "messages": [{"role": "user", "content": "bluebird"}]}
    async with httpx.AsyncClient() as ask:
        headers = {"authorization": f"Bearer {key}"}
        return (await ask.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers)).status_code


@pytest.mark.parametrize("path", ["/guard", "/teams/team_a/guard"])
async def test_rules_are_put_and_hold(gateway: Running, path: str) -> None:
    """Read as they were put; a new key falls under them at once; taken away they hold no more; a rival's team never does."""
    admin, rival = await key_of(gateway, "admin"), await globex(gateway)
    put = await call(gateway, "PUT", path, admin, {"rules": [RULE], "reason": "a trial"})
    assert (put.status, put.body) == (200, {"rules": [RULE], "object": "guard"})
    assert (await call(gateway, "GET", path, admin)).body == put.body
    assert (await call(gateway, "GET", "/guard", rival)).body["rules"] == []
    assert await asked(gateway, await key_of(gateway, "member")) == 400
    assert await asked(gateway, await key_of(gateway, "member", "team_b")) == 200
    gone = await call(gateway, "DELETE", path, admin)
    assert (gone.status, gone.body["deleted"]) == (200, True)
    assert await asked(gateway, await key_of(gateway, "member")) == 200


async def test_who_may_not_is_refused(gateway: Running) -> None:
    """A member reads its team's rules and changes none; another organisation's team is not there."""
    member, rival = await key_of(gateway, "member"), await globex(gateway)
    assert (await call(gateway, "GET", "/teams/team_a/guard", member)).status == 200
    for path in ("/guard", "/teams/team_a/guard"):
        assert (await call(gateway, "PUT", path, member, {"rules": []})).status == 403
    assert (await call(gateway, "PUT", "/teams/team_a/guard", rival, {"rules": [RULE]})).status == 404
    assert (await call(gateway, "GET", "/teams/team_a/guard", rival)).status == 404


async def test_what_is_no_rule_is_refused_with_what_to_do(gateway: Running) -> None:
    """(51)."""
    admin = await key_of(gateway, "admin")
    told = await call(gateway, "PUT", "/guard", admin, {"rules": [{**RULE, "kind": "presidio"}]})
    assert (told.status, told.param) == (400, "rules")
    assert "here it is `pii`" in told.body["error"]["message"]
