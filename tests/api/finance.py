"""A running gateway with the books of two organisations, and a key for everybody who may ask for them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from accounts.caller import Role
from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageQuery, UsageReader, UsageSums
from cost.times import DAY_US
from tests.cost.reports.two_organisations import DAY, two_days
from tests.running_gateway import PEPPER, Running, model, running_gateway

SCRIPTED: Final[list[dict[str, Any]]] = [{"name": "a", "kind": "scripted", "upstream_model": "ok"}]
DAY_S: Final = DAY // 1_000_000
TEAMS: Final = {("acme", "team_a"): "team_x", ("acme", "team_b"): "team_y", ("rival", "team_a"): "team_q"}
KEYS: Final[Mapping[str, tuple[str, Role]]] = {
    "member x": ("team_x", "member"),
    "member y": ("team_y", "member"),
    "finance": ("team_y", "finance"),
    "admin": ("team_x", "admin"),
    "rival finance": ("team_r", "finance"),
    "rival admin": ("team_r", "admin"),
    "revoked": ("team_x", "finance"),
}
"""Whose key, and its role."""


class Question(msgspec.Struct, frozen=True):
    """One GET."""

    who: str | None
    path: str
    query: Any = ""
    accept: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What came back."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def body(self) -> Any:
        """The JSON of it, with money as it was written."""
        return json.loads(self.text, parse_float=Decimal)

    @property
    def refusal(self) -> tuple[int, str | None, str | None]:
        """Status, code and param of a refusal in OpenAI's shape."""
        error = self.body["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return self.status, error["code"], error["param"]


class Finance(msgspec.Struct, frozen=True):
    """Everybody's way to a running gateway."""

    gateway: Running
    session: aiohttp.ClientSession
    keys: dict[str, str]

    async def get(
        self, who: str | None, path: str, query: Mapping[str, Any] | list[tuple[str, str]] | str = "", accept: str = ""
    ) -> Answer:
        """Asks as somebody, or as nobody."""
        headers = {"authorization": f"Bearer {self.keys[who]}"} if who is not None else {}
        headers |= {"accept": accept} if accept else {}
        async with self.session.get(self.gateway.url + path, params=query, headers=headers) as got:
            return Answer(got.status, await got.text(), {name.lower(): value for name, value in got.headers.items()})

    async def get_all(self, asked: list["Question"]) -> list[Answer]:
        """Many questions, some at a time."""
        # A route has seconds for its answer, also on a busy machine: what waits here waits for nobody.
        some = asyncio.Semaphore(3)

        async def ask(question: Question) -> Answer:
            async with some:
                return await self.get(question.who, question.path, question.query, question.accept)

        return list(await asyncio.gather(*map(ask, asked)))

    async def send(self, who: str, method: str, path: str, body: Any = None) -> Answer:
        """Sends JSON as somebody."""
        headers = {"authorization": f"Bearer {self.keys[who]}"}
        async with self.session.request(method, self.gateway.url + path, json=body, headers=headers) as got:
            return Answer(got.status, await got.text(), {name.lower(): value for name, value in got.headers.items()})

    async def keep(self, entries: list[Entry]) -> None:
        """More books."""
        await LedgerStore(self.gateway.engine).insert(entries)

    async def totals(self, organisation_id: str, days: int = 2) -> UsageSums:
        """What the roll-ups say."""
        scope = ReadScope(organisation_id=organisation_id, team_id=None)
        query = UsageQuery(scope=scope, start_us=DAY, end_us=DAY + days * DAY_US)
        found = (await UsageReader(self.gateway.engine).page(query)).totals
        assert found is not None
        return found


def entries() -> list[Entry]:
    """The two organisations' days, with teams that are theirs alone."""
    return [
        msgspec.structs.replace(each, team_id=TEAMS.get((each.organisation_id, each.team_id), each.team_id))
        for each in two_days()
    ]


@contextlib.asynccontextmanager
async def running_finance(folder: Path, *more: dict[str, Any], **sections: Any) -> AsyncIterator[Finance]:
    """Starts it all, with more models and sections of configuration where a test needs them."""
    pepper = Pepper(id=pepper_id(PEPPER.encode()), secret=PEPPER.encode())
    started = running_gateway(folder, [model("only", SCRIPTED), *more], **sections)
    async with started as gateway, aiohttp.ClientSession() as session:
        accounts = gateway.accounts
        for organisation_id, teams in (("acme", ("team_x", "team_y")), ("rival", ("team_q", "team_r"))):
            await accounts.create_organisation(organisation_id)
            for team_id in teams:
                await accounts.create_team(team_id, organisation_id=organisation_id)
        keys = {}
        for who, (team_id, role) in KEYS.items():
            minted = await accounts.create_key(team_id, "tests", pepper, role=role)
            keys[who] = minted.plaintext
            if who == "revoked":
                await accounts.revoke_key(minted.key_id)
        finance = Finance(gateway, session, keys)
        await finance.keep(entries())
        yield finance
