"""Feedback over a socket: what is booked, for whom, and how everything else is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from classifier.learning.store import LearningStore
from tests.classifier.learning.kept import a_weighing
from tests.running_gateway import PEPPER, Running, model, running_gateway

SCRIPTED: Any = [{"name": "a", "kind": "scripted", "upstream_model": "ok"}]


class Api(msgspec.Struct, frozen=True):
    """One team's way to a running gateway."""

    gateway: Running
    session: aiohttp.ClientSession
    key: str

    async def ask(self, name: str = "auto") -> str:
        """Sends a prompt and tells the reply's request id."""
        body = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
        async with self.session.post(f"{self.gateway.base_url}/chat/completions", json=body, headers=self._key) as got:
            assert got.status == 200, await got.text()
            return got.headers["x-request-id"]

    async def say(self, body: Any) -> tuple[int, dict[str, Any]]:
        """Sends feedback: a value as JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.gateway.base_url}/feedback", data=data, headers=self._key) as got:
            return got.status, await got.json()

    async def refused(self, body: Any) -> tuple[int, str | None, str | None]:
        """Status, code and param of a refusal in OpenAI's shape."""
        status, told = await self.say(body)
        assert set(told) == {"error"}
        assert set(told["error"]) == {"message", "type", "param", "code"}
        return status, told["error"]["code"], told["error"]["param"]

    async def summary(self) -> Any:
        async with self.session.get(f"{self.gateway.base_url}/feedback/summary", headers=self._key) as got:
            assert got.status == 200
            return await got.json()

    @property
    def _key(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """Team A, which may use everything, at a gateway with two models."""
    models = [model("small", SCRIPTED), model("large", SCRIPTED)]
    async with running_gateway(tmp_path, models) as gateway, aiohttp.ClientSession() as session:
        yield Api(gateway, session, gateway.key)


async def another_team(api: Api, team_id: str, **settings: Any) -> Api:
    secret = PEPPER.encode()
    await api.gateway.accounts.create_team(team_id, allowed_models=settings.pop("allowed_models", None))
    if settings:
        await api.gateway.accounts.update_team(team_id, **settings)
    pepper = Pepper(id=pepper_id(secret), secret=secret)
    minted = await api.gateway.accounts.create_key(team_id, "tests", pepper)
    return Api(api.gateway, api.session, minted.plaintext)


async def test_feedback_is_booked_at_once_and_replaced_by_a_second_thought(api: Api) -> None:
    """Right after the reply, while the request still waits in the queue; and the last word counts."""
    request_id = await api.ask()
    status, told = await api.say({"request_id": request_id, "passed": True})
    assert status == 200
    target = told["target"]
    assert told == {
        "object": "feedback",
        "request_id": request_id,
        "target": target,
        "rating": 1.0,
        "better_target": None,
    }
    better = {"small": "large", "large": "small"}[target]
    assert (await api.say({"request_id": request_id, "rating": 0.25, "better_target": better}))[0] == 200
    assert await api.summary() == {
        "object": "feedback.summary",
        "team_id": "team_a",
        "learning": "numbers",
        "data": [{"target": target, "source": "feedback", "signal": "rating", "verdicts": 1, "adequate": 0.25}],
    }
    async with api.session.get(f"{api.gateway.url}/metrics") as got:
        assert 'weighbridge_verdicts_total{signal="rating",source="feedback"} 2.0' in await got.text()


async def test_what_a_request_tells_by_itself_is_in_the_summary(api: Api) -> None:
    """The same prompt sent again speaks against the first answer, with nobody saying a word about it."""
    await api.ask()
    again = await api.ask()
    assert (await api.say({"request_id": again, "rating": 1}))[0] == 200
    rows = (await api.summary())["data"]
    assert [(row["source"], row["signal"], row["adequate"]) for row in rows] == [
        ("feedback", "rating", 1.0),
        ("implicit", "regenerated", 0.0),
    ]


async def test_another_teams_request_looks_like_none(api: Api) -> None:
    """The same refusal to the letter, nothing booked, and no summary of it."""
    stranger = await another_team(api, "team_b")
    request_id = await api.ask()
    assert (await api.say({"request_id": request_id, "passed": True}))[0] == 200
    unknown = f"{request_id[:-4]}{'0000' if request_id[-4:] != '0000' else '1111'}"
    theirs, nobodys = await asyncio.gather(
        *(stranger.say({"request_id": each, "passed": False}) for each in (request_id, unknown))
    )
    assert theirs == nobodys
    assert (theirs[0], theirs[1]["error"]["code"]) == (404, "request_not_found")
    assert (await stranger.summary())["data"] == []
    assert [(row["verdicts"], row["adequate"]) for row in (await api.summary())["data"]] == [(1, 1.0)]


async def test_the_same_id_of_two_teams_is_two_requests(api: Api) -> None:
    """Feedback reaches the own team's request, even if another has one of the same id."""
    stranger = await another_team(api, "team_b")
    shared = "req_0123456789ab0123456789abcdef"
    store = LearningStore(api.gateway.engine)
    await store.add([a_weighing(shared), a_weighing(shared, team_id="team_b", target_id="large")], ())
    status, told = await stranger.say({"request_id": shared, "rating": 0})
    assert (status, told["target"]) == (200, "large")
    assert (await api.summary())["data"] == []


async def test_a_team_that_keeps_nothing_is_told_what_to_do(api: Api) -> None:
    """409, with the command that changes it; nothing of its request was kept."""
    silent = await another_team(api, "team_b", learning="off")
    request_id = await silent.ask()
    status, told = await silent.say({"request_id": request_id, "passed": True})
    assert (status, told["error"]["code"]) == (409, "learning_off")
    assert "weighbridge teams set team_b --learning numbers" in told["error"]["message"]
    assert (await silent.summary())["learning"] == "off"


async def test_a_model_that_the_caller_named_has_no_feedback(api: Api) -> None:
    """The gateway chose nothing there. An id that no gateway makes is not looked for."""
    request_id = "req_000000000000" + (await api.ask("small"))[16:]
    for unknown in (request_id, "x", "req_' OR 1=1 --", "\u0000", "é" * 200):
        assert await api.refused({"request_id": unknown, "passed": True}) == (404, "request_not_found", "request_id")


async def test_what_is_wrong_with_the_body_is_told(api: Api) -> None:
    """Each mistake has its own answer, and none is a failure of the gateway."""
    few = await another_team(api, "team_b", allowed_models=["small"])
    shared = "req_0123456789ab0123456789abcdef"
    await LearningStore(api.gateway.engine).add([a_weighing(shared)], ())
    for body, expected in (
        ({"request_id": shared}, (400, None, "rating")),
        ({"request_id": shared, "rating": 1, "passed": True}, (400, None, "passed")),
        ({"request_id": shared, "rating": 1.01}, (400, None, "rating")),
        ({"request_id": shared, "rating": -1}, (400, None, "rating")),
        ({"request_id": "", "rating": 1}, (400, None, "request_id")),
        ({"request_id": "r" * 201, "rating": 1}, (400, None, "request_id")),
        ({"request_id": shared, "rating": 1, "better_target": "nothing"}, (400, None, "better_target")),
        ({"request_id": shared, "rating": 1, "better_target": "small"}, (400, None, "better_target")),
        ({"request_id": shared, "rating": 1, "comment": "nice"}, (400, None, None)),
        ({"request_id": shared, "rating": True}, (400, None, None)),
        ({"request_id": shared, "passed": 1}, (400, None, None)),
        ({"request_id": shared, "rating": "1"}, (400, None, None)),
        ({"rating": 1}, (400, None, None)),
        ([], (400, None, None)),
        (b"", (400, None, None)),
        (b"{", (400, None, None)),
        (b'"\xff"', (400, None, None)),
        (b'{"request_id": "\\ud800", "rating": 1}', (400, None, None)),
        (b'{"request_id": "r", "rating": 1e999}', (400, None, None)),
        (b'{"request_id": "' + b"r" * 5_000 + b'"}', (413, "request_too_large", None)),
    ):
        assert await api.refused(body) == expected, body
    assert "unknown field `comment`" in (await api.say({"request_id": shared, "comment": ""}))[1]["error"]["message"]
    forbidden = {"request_id": shared, "rating": 1, "better_target": "large"}
    assert await few.refused(forbidden) == (400, None, "better_target")


async def test_without_a_key_nothing_is_read(api: Api) -> None:
    """Neither feedback nor its summary."""
    nobody = Api(api.gateway, api.session, "wb-nobody")
    assert (await nobody.refused({"request_id": "x", "passed": True}))[0] == 401
    async with api.session.get(f"{api.gateway.base_url}/feedback/summary") as got:
        assert got.status == 401
