"""While one capable target is well every request is answered, whatever ails the others and whoever provoked it.

`make soak-availability` asks the same of whole gateways, for longer.
"""

import asyncio
import contextlib
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import openai
import pytest
import yaml

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from tests.fleet import POOL
from tests.ill_upstream import FROM_ANTHROPIC, ILLNESSES, NOBODY, TOO_LONG, Illness, Place, ill_upstreams
from tests.processes import until
from tests.running_gateway import PEPPER, Running, model, running_gateway
from tests.three_wires import WIRES, Answer, ask

_REQUESTS: Final = 20
_KEY: Final = "env:MADE_UP_ANTHROPIC_KEY"
_QUESTION: Final = "What is the capital of France?"
_POISON: Final = "a picture that the engine cannot read"
_BATCH: Final = {"x-tier": "batch"}
_AT_ONCE: Final = sorted(ILLNESSES.keys() - {"black hole"})
"""Illnesses that show at once."""


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_ANTHROPIC_KEY", "sk-ant-made-up-0123456789")


class Town:
    """A gateway and the teams that ask it."""

    def __init__(self, gateway: Running, session: aiohttp.ClientSession) -> None:
        self._gateway = gateway
        self._session = session
        self._numbers = itertools.count()

    async def team(self, name: str) -> str:
        """The key of a new team."""
        secret = PEPPER.encode()
        await self._gateway.accounts.create_team(name, name=name)
        minted = await self._gateway.accounts.create_key(name, "tests", Pepper(id=pepper_id(secret), secret=secret))
        return minted.plaintext

    async def ask(self, key: str = "", text: str = _QUESTION, **fields: Any) -> Answer:
        """One request, on each wire in turn, streamed and whole; without a key it is of `team_a`."""
        number = next(self._numbers)
        fields = {"wire": WIRES[number % 3], "stream": number % 2 == 0, **fields}
        return await ask(self._session, self._gateway.url, key or self._gateway.key, text, **fields)


@contextlib.asynccontextmanager
async def town(folder: Path, models: list[dict[str, Any]], **sections: Any) -> AsyncIterator[Town]:
    async with running_gateway(folder, models, **sections) as gateway, aiohttp.ClientSession() as session:
        yield Town(gateway, session)


def first_and_second(first: Sequence[dict[str, Any]], second: Place) -> list[dict[str, Any]]:
    """A cheap target of these deployments, which `auto` prefers, and a dear one."""
    return [
        model("first", list(first), prices={"input": 1, "output": 1}),
        model("second", [second.deployment()], prices={"input": 9, "output": 9}),
    ]


def told(answers: Iterable[Answer]) -> Counter[str]:
    return Counter(answer.told for answer in answers)


def deployment_with(name: str, place: Place) -> dict[str, Any]:
    return place.anthropic_deployment(_KEY) if name in FROM_ANTHROPIC else place.deployment()


@pytest.mark.parametrize("illness", _AT_ONCE)
async def test_one_of_two_targets_is_ill_from_the_first_request(tmp_path: Path, illness: str) -> None:
    """A fresh gateway with its defaults answers every request from the other one, on every wire and tier."""
    async with ill_upstreams(2) as (ill, well):
        await ill.become(ILLNESSES[illness])
        async with town(tmp_path, first_and_second([deployment_with(illness, ill)], well)) as found:
            answers = [await found.ask(headers=_BATCH if number % 5 == 4 else None) for number in range(_REQUESTS)]
            assert told(answers) == {"200": _REQUESTS}
            assert await ill.asked() > 0


async def test_one_of_two_targets_refuses_connections_from_the_first_request(tmp_path: Path) -> None:
    """Nobody listens at its address, and no caller notices."""
    async with ill_upstreams(1) as (well,):
        nobody = {"name": "main", "kind": "openai", "base_url": f"{NOBODY}/v1", "upstream_model": "ok"}
        async with town(tmp_path, first_and_second([nobody], well)) as found:
            assert told([await found.ask() for _ in range(_REQUESTS)]) == {"200": _REQUESTS}


async def test_one_of_two_targets_never_answers(tmp_path: Path) -> None:
    """A stream that gets no token from it within the limit is answered by the other one."""
    providers = {"timeouts": {"first_token_interactive_s": 0.3}}
    async with ill_upstreams(2) as (ill, well):
        await ill.become(ILLNESSES["black hole"])
        models = first_and_second([ill.deployment()], well)
        async with town(tmp_path, models, providers=providers) as found:
            assert told([await found.ask(stream=True) for _ in range(8)]) == {"200": 8}


@pytest.mark.parametrize("illness", ["429 insufficient_quota", "429, retry-after 20", "429, bare"])
async def test_one_of_two_deployments_of_a_model_is_refused(tmp_path: Path, illness: str) -> None:
    """The other one, with limits and a key of its own, answers all."""
    async with ill_upstreams(2) as (ill, well):
        await ill.become(ILLNESSES[illness])
        models = [model("twice", [ill.deployment("ill"), well.deployment("well")])]
        async with town(tmp_path, models) as found:
            answers = [await found.ask(model="twice") for _ in range(2 * _REQUESTS)]
            assert told(answers) == {"200": 2 * _REQUESTS}


async def test_a_team_that_floods_a_throttled_model_takes_nothing_from_the_others(tmp_path: Path) -> None:
    """Its many refusals, each of two deployments, cost no other team the way to a healthy target."""
    async with ill_upstreams(3) as (throttled, ill, well):
        await throttled.become(ILLNESSES["429, bare"])
        await ill.become(ILLNESSES["429, bare"])
        twice = [throttled.deployment("one"), throttled.deployment("other")]
        models = [*first_and_second([ill.deployment()], well), model("throttled", twice)]
        async with town(tmp_path, models, policy={"auto": ["first", "second"]}) as found:
            flood = await found.team("flood")
            refused = await asyncio.gather(*(found.ask(flood, model="throttled") for _ in range(_REQUESTS)))
            assert {answer.status for answer in refused} == {429}
            assert told([await found.ask() for _ in range(_REQUESTS)]) == {"200": _REQUESTS}


async def test_a_prompt_that_is_too_long_for_the_first_goes_to_the_larger(tmp_path: Path) -> None:
    """However many there are, and no refusal is counted against anybody."""
    async with ill_upstreams(2) as (small, large):
        await small.become(TOO_LONG)
        models = [model("small", [small.deployment()]), model("large", [large.deployment()])]
        async with town(tmp_path, models, policy={"fallbacks": {"small": ["large"]}}) as found:
            answers = [await found.ask(model="small") for _ in range(2 * _REQUESTS)]
            assert told(answers) == {"200": 2 * _REQUESTS}


@pytest.mark.parametrize("teams", [1, 3])
@pytest.mark.parametrize("illness", ["500", "reset"])
async def test_when_all_targets_fail_their_calls_are_not_multiplied(tmp_path: Path, illness: str, teams: int) -> None:
    """Upstreams get at most 1.2 times what callers ask, whether one team asks or several."""
    async with ill_upstreams(2) as places:
        for place in places:
            await place.become(ILLNESSES[illness])
        async with town(tmp_path, first_and_second([places[0].deployment()], places[1])) as found:
            keys = [await found.team(f"team_{number}") for number in range(teams)]
            answers = [await found.ask(keys[number % teams]) for number in range(60)]
            assert not any(answer.good for answer in answers)
            assert sum([await place.asked() for place in places]) <= 1.2 * len(answers)


_GENERIC: Final = Illness(
    status=500,
    body='{"error": {"message": "Internal Server Error", "type": "InternalServerError", "param": null, "code": 500}}',
    only=_POISON,
)
_TOO_LARGE: Final = Illness(
    status=500,
    body='{"error": {"code": 500, "message": "input is too large to process. increase the physical batch size", "type": "server_error"}}',
    only=_POISON,
)
"""What llama.cpp's server says of an embedding's input, or of a picture, that is larger than its batch."""


def _own(places: Sequence[Place], *, pooled: bool) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    """A model of these engines, as a pool or as deployments, and the sections that it needs."""
    prices = {"input": "0.4", "output": "0.4"}
    if not pooled:
        engines = [place.deployment(f"engine-{number}", kind="vllm") for number, place in enumerate(places)]
        return [model("own", engines, prices=prices)], {}
    fields = model("own", [], provider="self-hosted", prices=prices)
    replicas = [{"name": f"replica-{number}", "url": place.url} for number, place in enumerate(places)]
    pool = {
        "name": POOL,
        "targets": ["own"],
        "upstream_model": "ok",
        "replicas": replicas,
        "watch": {"every_s": 0.2, "timeout_s": 5.0},
    }
    del fields["deployments"]
    return [fields], {"selfhosted": {"pools": [pool]}}


async def _until_answered(found: Town, key: str = "", **fields: Any) -> None:
    async with asyncio.timeout(60):
        while not (await found.ask(key, **fields)).good:  # noqa: ASYNC110 - a gateway tells of no events
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("pooled", [False, True])
async def test_what_an_engine_fails_at_for_one_team_closes_it_for_no_other(tmp_path: Path, pooled: bool) -> None:
    """One team's requests get 500 each time, many in a row, and those of another are answered between them."""
    async with ill_upstreams(1) as (engine,):
        models, sections = _own([engine], pooled=pooled)
        async with town(tmp_path, models, **sections) as found:
            await _until_answered(found, model="own")
            await engine.become(_GENERIC)
            broken = await found.team("broken")
            answers = []
            for _ in range(_REQUESTS):
                failed = [await found.ask(broken, _POISON, model="own") for _ in range(6)]
                assert not any(answer.good for answer in failed)
                answers.append(await found.ask(model="own"))
            assert told(answers) == {"200": _REQUESTS}


async def test_an_input_that_an_engine_cannot_take_is_the_requests_own_fault(tmp_path: Path) -> None:
    """The engine says 500 in words that are known, the caller is told 400, and the next one is answered."""
    async with ill_upstreams(1) as (engine,):
        await engine.become(_TOO_LARGE)
        models, sections = _own([engine], pooled=False)
        async with town(tmp_path, models, **sections) as found:
            for _ in range(_REQUESTS // 2):
                assert (await found.ask(text=_POISON, model="own")).status == 400
                assert (await found.ask(model="own")).good


async def test_the_probe_of_an_open_breaker_is_not_the_request_that_failed(tmp_path: Path) -> None:
    """An engine that failed at everybody is mended, but for one team's requests: though one of those comes first each time, the
    others are answered again.
    """
    async with ill_upstreams(1) as (engine,):
        models, sections = _own([engine], pooled=False)
        sections = {**sections, "providers": {"breaker": {"base_ejection_s": 0.2}}}
        async with town(tmp_path, models, **sections) as found:
            keys = [await found.team(f"team_{number}") for number in range(3)]
            await engine.become(ILLNESSES["500"])
            for number in range(12):
                assert not (await found.ask(keys[number % 3], model="own")).good
            await engine.become(_GENERIC)
            async with asyncio.timeout(30):
                while True:
                    assert not (await found.ask(keys[0], _POISON, model="own")).good
                    if (await found.ask(keys[1], model="own")).good:
                        break
                    await asyncio.sleep(0.3)
            assert told([await found.ask(keys[2], model="own") for _ in range(5)]) == {"200": 5}


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_pool_too_slow_for_the_callers_time_is_left_for_a_healthy_target(tmp_path: Path, replicas: int) -> None:
    """Its engines say nothing in time: the paid model answers before the caller's deadline, streams and whole answers alike."""
    async with ill_upstreams(replicas + 1) as (*engines, paid):
        models, sections = _own(engines, pooled=True)
        models.append(model("paid", [paid.deployment()], prices={"input": 9, "output": 9}))
        async with town(tmp_path, models, **sections) as found:
            await _until_answered(found, model="own")
            for engine in engines:
                await engine.become(ILLNESSES["black hole"])
            within = {"x-request-timeout-ms": "8000"}
            asked = (found.ask(wire=wire, stream=stream, headers=within) for wire in WIRES for stream in (True, False))
            answers = await asyncio.gather(*asked)
            assert told(answers) == {"200": 6}
            assert {answer.target for answer in answers} == {"paid"}


async def test_prompts_that_exceed_a_minutes_tokens_keep_no_other_team_away(tmp_path: Path) -> None:
    """One team's large prompts are refused for a minute where small ones are answered: the only deployment stays everybody else's."""
    large = "a long text " * 500
    async with ill_upstreams(1) as (place,):
        await place.become(msgspec.structs.replace(ILLNESSES["429, retry-after 20"], only=large))
        async with town(tmp_path, [model("only", [place.deployment()])]) as found:
            greedy = await found.team("greedy")
            for _ in range(6):
                assert (await found.ask(greedy, text=large, model="only")).told == "429 upstream_rate_limited"
                assert (await found.ask(model="only")).good
            assert await place.asked() == 1 + 6


@pytest.mark.parametrize(("illness", "again"), [("401", False), ("402", False), ("500", True), ("429, bare", True)])
async def test_clients_wait_only_for_what_passes_by_itself(tmp_path: Path, illness: str, again: bool) -> None:
    """What operators must mend is told at once, to the first caller as to later ones: clients would wait 30 s and fail then."""
    async with ill_upstreams(1) as (place,):
        await place.become(ILLNESSES[illness])
        async with running_gateway(tmp_path, [model("only", [place.deployment()])]) as gateway:
            asking = openai.AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key, max_retries=0)
            told: list[bool] = []
            for _ in range(7):
                with pytest.raises(openai.APIStatusError) as refused:
                    await asking.chat.completions.create(
                        model="only", messages=[{"role": "user", "content": _QUESTION}]
                    )
                told.append(refused.value.response.headers.get("x-should-retry") != "false")
            assert told[-1] == again
            assert not (any(told) and not again)
            await asking.close()


async def test_a_key_that_is_replaced_is_used_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload with another key calls the deployment again, whatever the old key was refused for."""
    async with ill_upstreams(1) as (place,):
        await place.become(ILLNESSES["401"])
        models = [model("only", [place.deployment(api_key="env:MADE_UP_ANTHROPIC_KEY")])]
        async with running_gateway(tmp_path, models) as gateway, aiohttp.ClientSession() as session:
            found = Town(gateway, session)
            refused = [await found.ask(model="only") for _ in range(2)]
            assert told(refused) == {"502 upstream_refused": 1, "503 targets_unavailable": 1}
            await place.become(None)
            gateway.reload()
            assert not (await found.ask(model="only")).good
            monkeypatch.setenv("MADE_UP_ANTHROPIC_KEY", "sk-ant-made-up-9876543210")
            gateway.reload()
            assert told([await found.ask(model="only") for _ in range(3)]) == {"200": 3}


async def test_a_reload_leaves_no_series_of_a_deployment_that_is_gone(tmp_path: Path) -> None:
    """A circuit that nobody has would stand in the metrics as it was last."""
    async with ill_upstreams(2) as places:
        models = [model(name, [place.deployment()]) for name, place in zip(("stays", "goes"), places, strict=True)]
        async with running_gateway(tmp_path, models) as gateway, aiohttp.ClientSession() as session:

            async def deployments() -> set[str]:
                async with session.get(f"{gateway.url}/metrics") as reply:
                    page = await reply.text()
                return set(re.findall(r'deployment="(\w+)/', page))

            async def are(expected: set[str]) -> bool:
                return await deployments() == expected

            await until(lambda: are({"stays", "goes"}))
            written = yaml.safe_load(gateway.config_path.read_text())
            written["providers"]["models"].pop()
            gateway.config_path.write_text(yaml.safe_dump(written))
            gateway.reload()
            await until(lambda: are({"stays"}))
