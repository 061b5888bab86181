"""Calls of the admin API over a socket, by keys of every role."""

import json
from decimal import Decimal
from typing import Any

import aiohttp

from accounts.caller import Role
from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from tests.running_gateway import PEPPER, Running

SCRIPTED: list[dict[str, Any]] = [{"kind": "scripted", "upstream_model": "ok"}]


async def key_of(gateway: Running, role: Role, team: str = "team_a") -> str:
    """A new key of this role."""
    secret = PEPPER.encode()
    minted = await gateway.accounts.create_key(team, role, Pepper(id=pepper_id(secret), secret=secret), role=role)
    return minted.plaintext


async def globex(gateway: Running) -> str:
    """Another organisation with the team `team_b`: its administrator's key."""
    await gateway.accounts.create_organisation("globex")
    await gateway.accounts.create_team("team_b", organisation_id="globex")
    return await key_of(gateway, "admin", "team_b")


class Told:
    """A reply."""

    def __init__(self, status: int, body: Any, headers: dict[str, str]) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    @property
    def code(self) -> str | None:
        """Of the error."""
        found: str | None = self.body["error"]["code"]
        return found

    @property
    def param(self) -> str | None:
        """What the error is about."""
        found: str | None = self.body["error"]["param"]
        return found


async def call(gateway: Running, method: str, path: str, key: str, body: Any = None) -> Told:
    """Numbers are read as they are written."""
    data = body if isinstance(body, str | bytes) or body is None else json.dumps(body)
    headers = {"authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{gateway.base_url}/admin{path}", headers=headers, data=data) as got,
    ):
        told = json.loads(await got.text(), parse_float=Decimal)
        return Told(got.status, told, {name.lower(): value for name, value in got.headers.items()})
