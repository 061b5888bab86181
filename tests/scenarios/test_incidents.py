"""Incidents of real processes against a scripted outage whose victims are counted: every surface says their number."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr

from accounts.store import AccountStore
from dashboards.alerts.alert import Alert
from dashboards.alerts.store import add_alert
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from gateway.database import make_engine
from tests.api.webhooks.receiver import SECRET
from tests.ill_upstream import ILLNESSES, NOBODY, Illness, Place, ill_upstreams
from tests.processes import Server, Site, make_site, serving, until
from tests.running_gateway import PEPPER, model

_ASKED: Final = {"team_a": 90, "team_b": 48}
"""The requests of each team: 138 in all."""
_FIRST_ERROR: Final = 400
_TOLD_WITHIN_S: Final = 240.0
"""Alerts are looked at once a minute."""
_CAUSES: Final = {
    "401": "its provider refuses our key",
    "500": "it answered that it cannot serve (500",
    "429": "",
    "reset": "",
    "refused": "no connection",
}
"""Kinds of outage, and the words that its incident begins with."""
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
        about = Alert(
            alert_id="alert_1",
            organisation_id="default",
            name="Outages",
            measure="incidents",
            threshold=138,
            window_s=3_600,
            destination="ops",
        )
        async with engine.begin() as connection:
            assert await add_alert(connection, about)
    finally:
        await engine.dispose()
    return {"team_a": site.key, "team_b": other.plaintext, "operator": operator.plaintext}


async def ask_all(
    server: Server, keys: Mapping[str, str], names: tuple[str, ...], **fields: Any
) -> Counter[tuple[str, bool]]:
    """Ask for all of the teams' requests over connections of their own, so that both workers get some; count who was answered."""
    told: Counter[tuple[str, bool]] = Counter()
    room = asyncio.Semaphore(8)

    async def ask(team: str, number: int) -> None:
        body = {"model": names[number % len(names)], "messages": [{"role": "user", "content": "Hi."}], **fields}
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


class Receiver:
    """A destination of alerts, and the data of the messages that it got."""

    def __init__(self) -> None:
        self.url = ""
        self.told: list[dict[str, Any]] = []
        self._got = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        self.told.append((await request.json())["data"])
        self._got.set()
        return web.Response()

    async def has(self, incident_id: str) -> None:
        """Wait until the incident was told."""
        while not any(each.get("incident_id") == incident_id for each in self.told):
            self._got.clear()
            await self._got.wait()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/", found.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield found
    await runner.cleanup()


@pytest.mark.parametrize(
    "ill", [each if each == "401" else pytest.param(each, marks=pytest.mark.long) for each in _CAUSES]
)
async def test_an_outage_counts_all_its_victims_on_every_surface(
    tmp_path: Path, place: Place, receiver: Receiver, ill: str
) -> None:
    """Two workers, two teams, 138 refused callers, most of them after the circuits had opened: the API, the terminal, the history, the
    alert and the metric agree and say the cause first, also after a restart.
    """
    ops = {"name": "ops", "url": receiver.url, "secret": "env:OPS_SECRET"}
    site = await make_site(
        tmp_path,
        site_models(place, ill),
        accounts={"operator": "default"},
        webhooks={"destinations": [ops]},
        variables={"OPS_SECRET": SECRET},
    )
    keys = await more_keys(site)
    if ill in _ILL:
        await place.become(_ILL[ill])
    async with serving(site, "gateway", "--workers", "2") as server:
        told = await ask_all(server, keys, ("large", "small"))
        assert told == {("team_a", False): 90, ("team_b", False): 48}
        assert ill == "429" or await place.asked() < 138
        await until(lambda: says(server, keys, "", "incidents"))
        now = await operations(server, keys)
        (incident,) = ours(now["incidents"])
        assert incident["text"].startswith(_CAUSES[ill])
        assert {each["state"] for each in now["targets"]} <= {"down", "failing", "saturated"}
        await until(lambda: says(server, keys, "/incidents", "data"))
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
        await asyncio.wait_for(receiver.has(kept["incident_id"]), _TOLD_WITHIN_S)
        (message,) = [each for each in receiver.told if each["incident_id"] == kept["incident_id"]]
        assert (message["requests"], message["refused"], message["teams"]) == (138, 138, 2)
        assert "Hurt: 138 requests of 2 teams refused." in message["text"]
        assert await server.stop() == 0
    await place.become(None)
    async with serving(site, "again", "--workers", "1") as server:
        (again,) = ours((await operations(server, keys, "/incidents"))["data"])
        assert (again["incident_id"], again["requests"]) == (kept["incident_id"], 138)


@pytest.mark.long
async def test_who_waits_is_hurt_too(tmp_path: Path, place: Place) -> None:
    """Requests whose first token takes half of the time that it may take, or longer: each of the 138, and none of them was refused."""
    site = await make_site(
        tmp_path,
        site_models(place, "slow"),
        accounts={"operator": "default"},
        providers={"timeouts": {"first_token_interactive_s": 1.0}},
    )
    keys = await more_keys(site)
    await place.become(Illness(late_s=0.6))
    async with serving(site, "gateway", "--workers", "2") as server:
        told = await ask_all(server, keys, ("large", "small"), stream=True)
        assert told == {("team_a", True): 90, ("team_b", True): 48}

        async def all_are_counted() -> bool:
            found = ours((await operations(server, keys))["incidents"])
            return sum(each["requests"] or 0 for each in found) == 138

        await until(all_are_counted)
        now = await operations(server, keys)
        assert {(each["kind"], each["refused"], each["teams"]) for each in ours(now["incidents"])} == {("slow", 0, 2)}
        assert {each["state"] for each in now["targets"]} == {"slow"}


async def says(server: Server, keys: Mapping[str, str], path: str, name: str) -> bool:
    """Whether one incident is told, and has hurt 138 requests of two keys and teams."""
    found = ours((await operations(server, keys, path))[name])
    return [(each["requests"], each["refused"], each["teams"], each["keys"]) for each in found] == [(138, 138, 2, 2)]


def ours(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The incidents of what serves requests: not that the plain rule classifies, that teams are refused often, or that the test's own
    machine is slow.
    """
    return [each for each in incidents if each["targets"]]
