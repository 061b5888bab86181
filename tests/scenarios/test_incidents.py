"""Incidents of real processes against a scripted outage whose victims are counted: every surface says their number."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from pydantic import SecretStr

from accounts.store import AccountStore
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from gateway.database import make_engine
from tests.ill_upstream import ILLNESSES, NOBODY, Illness, Place, ill_upstreams
from tests.processes import Server, Site, make_site, serving, until
from tests.running_gateway import PEPPER, model

_ASKED: Final = {"team_a": 90, "team_b": 48}
"""The requests of each team: 138 in all."""
_FIRST_ERROR: Final = 400
_ILL: Final[Mapping[str, Illness]] = {
    "401": ILLNESSES["401"],
    "500": ILLNESSES["500"],
    "429": ILLNESSES["429, retry-after 20"],
    "reset": ILLNESSES["reset"],
}


async def more_keys(site: Site) -> dict[str, str]:
    """A key of each of the two teams, and one of an operator."""
    environment = Environment(data_dir=site.folder, pepper=SecretStr(PEPPER))
    pepper = peppers(load(site.config_path, environment, secrets_from=None), environment)[0]
    engine = make_engine(site.database_url)
    try:
        accounts = AccountStore(engine)
        await accounts.create_team("team_b", name="Team B")
        other = await accounts.create_key("team_b", "tests", pepper)
        operator = await accounts.create_key("team_a", "ops", pepper, role="admin")
    finally:
        await engine.dispose()
    return {"team_a": site.key, "team_b": other.plaintext, "operator": operator.plaintext}


async def ask_all(server: Server, keys: Mapping[str, str], names: tuple[str, ...]) -> Counter[tuple[str, bool]]:
    """Ask for all of the teams' requests over connections of their own, so that both workers get some; count who was answered."""
    told: Counter[tuple[str, bool]] = Counter()
    room = asyncio.Semaphore(8)

    async def ask(team: str, number: int) -> None:
        body = {"model": names[number % len(names)], "messages": [{"role": "user", "content": "Hi."}]}
        headers = {"authorization": f"Bearer {keys[team]}"}
        async with (
            room,
            aiohttp.ClientSession(server.url, headers=headers) as session,
            session.post("/v1/chat/completions", json=body) as reply,
        ):
            await reply.read()
            told[team, reply.status < _FIRST_ERROR] += 1

    await asyncio.gather(*(ask(team, number) for team, count in _ASKED.items() for number in range(count)))
    return told


async def operations(server: Server, keys: Mapping[str, str], path: str = "") -> dict[str, Any]:
    headers = {"authorization": f"Bearer {keys['operator']}"}
    async with (
        aiohttp.ClientSession(server.url, headers=headers) as session,
        session.get(f"/v1/operations{path}") as reply,
    ):
        assert reply.status == 200, await reply.text()
        found: dict[str, Any] = await reply.json()
        return found


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with ill_upstreams(1) as (place,):
        yield place


def site_models(place: Place, ill: str) -> list[dict[str, Any]]:
    """Two models of one provider, at the place or where nobody listens."""
    at = {"base_url": f"{NOBODY}/v1"} if ill == "refused" else {}
    return [model(name, [place.deployment("main", "ok") | at]) for name in ("large", "small")]


@pytest.mark.parametrize("ill", [*_ILL, "refused"])
async def test_an_outage_counts_all_its_victims_on_every_surface(tmp_path: Path, place: Place, ill: str) -> None:
    """Two workers, two teams, 138 refused callers, most of them after the circuits had opened: the API, the terminal, the history and the metric
    agree, and say the cause first.
    """
    site = await make_site(tmp_path, site_models(place, ill), accounts={"operator": "default"})
    keys = await more_keys(site)
    if ill in _ILL:
        await place.become(_ILL[ill])
    async with serving(site, "gateway", "--workers", "2") as server:
        told = await ask_all(server, keys, ("large", "small"))
        assert told == {("team_a", False): 90, ("team_b", False): 48}
        assert ill == "429" or await place.asked() < 138

        async def all_are_counted() -> bool:
            found = (await operations(server, keys))["incidents"]
            return [(each["requests"], each["refused"], each["teams"], each["keys"]) for each in ours(found)] == [
                (138, 138, 2, 2)
            ]

        await until(all_are_counted)
        now = await operations(server, keys)
        (incident,) = ours(now["incidents"])
        assert incident["text"].startswith(_CAUSE[ill])
        assert {each["state"] for each in now["targets"]} <= {"down", "failing", "saturated"}

        async def is_kept() -> bool:
            kept = ours((await operations(server, keys, "/incidents"))["data"])
            return [each["requests"] for each in kept] == [138]

        await until(is_kept)
        (kept,) = ours((await operations(server, keys, "/incidents"))["data"])
        shares: Counter[str] = Counter()
        for each in kept["hurt"]:
            shares[each["team_id"]] += each["refused"]
        assert shares == _ASKED
        (site.folder / "key").write_text(keys["operator"])
        top = await site.run("top", "--url", server.url, "--key-file", str(site.folder / "key"), "--once")
        assert "138 requests of 2 teams refused" in " ".join(top.stdout.split())
        async with aiohttp.ClientSession(server.url) as session, session.get("/metrics") as reply:
            page = await reply.text()
        (count,) = re.findall(r'^weighbridge_incidents\{severity="(?:bad|warn)"\} ([1-9]\S*)$', page, re.MULTILINE)
        assert float(count) == 1


_CAUSE: Final = {
    "401": "its provider refuses our key",
    "500": "it answered that it cannot serve (500",
    "429": "",
    "reset": "",
    "refused": "no connection",
}


def ours(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The incidents of what serves requests: not that the plain rule classifies, nor that teams are refused often."""
    return [each for each in incidents if each["kind"] not in {"configuration", "flooding"}]
