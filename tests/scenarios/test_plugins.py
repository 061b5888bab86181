"""Plug-ins in a running gateway: what each kind does for a request, and what one that is broken costs."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest
from aiohttp import web
from pydantic import SecretStr

from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.processes import make_site, serving, start
from tests.providers.wires import provider
from tests.running_gateway import CHEAP_PRICES, PEPPER, Running, model, running_gateway

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "plugins"
ASK: Final[Any] = [{"role": "user", "content": "Say hello."}]
_SCRIPTED: Final[Any] = [{"kind": "scripted", "upstream_model": "ok"}]
_SOURCE: Final = '''
import asyncio, time

class Base:
    protocol = 1

class Vetoes(Base):
    """Vetoes what it is told to, and speaks of targets that are no candidates, too."""
    from dataclasses import dataclass
    @dataclass(frozen=True)
    class Settings:
        targets: list[str]
        more: int = 0
    def __init__(self, settings):
        self.settings = settings
    def score(self, facts, candidates):
        from weighbridge.plugins import Score
        SEEN.append((facts, candidates))
        return [
            Score(target_id=each, veto="" if self.settings.more else "not there", margin_nanousd=self.settings.more)
            for each in (*self.settings.targets, "forbidden")
        ]

class Hangs(Base):
    def score(self, facts, candidates):
        time.sleep(30)

class Raises(Base):
    def score(self, facts, candidates):
        raise RuntimeError(facts.text)

class Keeps(Base):
    async def finished(self, outcomes):
        KEPT.extend(outcomes)

class HangsExporting(Base):
    async def finished(self, outcomes):
        await asyncio.sleep(30)

class HangsAuthenticating(Base):
    async def caller(self, headers):
        await asyncio.sleep(30)

class Knows(Base):
    async def caller(self, headers):
        from weighbridge.plugins import Identity
        SEEN.append(dict(headers))
        known = headers.get("x-user")
        return None if known is None else Identity(team_id=known.partition("/")[0], key_name=known.partition("/")[2])

SEEN = []
KEPT = []
'''


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The plug-ins of a made-up house, as a module, and those of the examples."""
    (tmp_path / "house_plugins.py").write_text(_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES / "residency")
    import house_plugins  # type: ignore[import-not-found]

    yield house_plugins
    for name in ("house_plugins", *(path.stem for path in EXAMPLES.rglob("*.py"))):
        sys.modules.pop(name, None)


def plugin(name: str, kind: str, use: str, **others: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "use": use if ":" in use else f"house_plugins:{use}", **others}


def models() -> list[dict[str, Any]]:
    """A cheap one and a dear one."""
    return [
        model("cheap", _SCRIPTED, provider="there", prices=CHEAP_PRICES),
        model("dear", _SCRIPTED, provider="here"),
    ]


@contextlib.asynccontextmanager
async def asking(gateway: Running, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(base_url=gateway.base_url, headers=named, timeout=30) as client:
        yield client


async def ask(gateway: Running, asked: str = "auto", **headers: str) -> httpx.Response:
    headers = headers or {"authorization": f"Bearer {gateway.key}"}
    async with asking(gateway, **headers) as client:
        return await client.post("/chat/completions", json={"model": asked, "messages": ASK})


async def metric(gateway: Running, sample: str) -> float:
    async with httpx.AsyncClient() as client:
        page = (await client.get(f"{gateway.url}/metrics")).text
    found = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(sample)]
    return float(found[0]) if found else 0.0


async def test_a_scorer_vetoes_and_its_reason_is_told(tmp_path: Path, house: Any) -> None:
    """The cheapest is not asked; where nothing is left the caller reads why; its facts hold no text that was not granted."""
    veto = plugin("residency", "scorer", "Vetoes", settings={"targets": ["cheap"]})
    async with running_gateway(tmp_path, models(), plugins=[veto]) as gateway:
        answered = await ask(gateway)
        assert answered.headers["x-weighbridge-target"] == "dear"
        named = await ask(gateway, "cheap")
        assert named.status_code == 400
        assert "the plug-in residency says: not there" in named.json()["error"]["message"]
    facts, candidates = house.SEEN[0]
    assert {each.target_id for each in candidates} == {"cheap", "dear"}
    assert (facts.team_id, facts.text) == ("team_a", None)
    with pytest.raises(AttributeError):
        facts.team_id = "team_b"


async def test_a_margin_changes_the_order_and_not_the_books(tmp_path: Path, house: Any) -> None:
    """The dearer one answers, and is booked at its own price."""
    more = plugin("dislike", "scorer", "Vetoes", settings={"targets": ["cheap"], "more": 10_000_000_000})
    async with running_gateway(tmp_path, models(), plugins=[more]) as gateway:
        assert (await ask(gateway)).headers["x-weighbridge-target"] == "dear"
        (row,) = await gateway.rows("entry = 'settle'")
        assert row["target_id"] == "dear"
        assert row["cost_nanousd"] < 1_000_000_000
        assert (await ask(gateway, "cheap")).headers["x-weighbridge-target"] == "cheap"


async def test_a_scorer_adds_no_target_that_the_policy_forbids(tmp_path: Path, house: Any) -> None:
    """Whatever it says of one that the team may not use: not even the cheapest margin brings it in."""
    tempts = plugin("tempts", "scorer", "Vetoes", settings={"targets": ["cheap"], "more": -1_000_000_000_000})
    async with running_gateway(tmp_path, models(), plugins=[tempts]) as gateway:
        await gateway.accounts.create_team("narrow", name="Narrow", allowed_models=["dear"])
        key = await new_key(gateway, "narrow", "tests")
        answered = await ask(gateway, authorization=f"Bearer {key}")
        assert answered.headers["x-weighbridge-target"] == "dear"
        assert (await ask(gateway, "cheap", authorization=f"Bearer {key}")).status_code in {400, 403, 404}


@pytest.mark.parametrize("broken", ["Hangs", "Raises"])
async def test_a_broken_scorer_says_nothing_and_costs_little(tmp_path: Path, broken: str, house: Any) -> None:
    """The plan is as without it. One that hangs is interrupted, and taken out after three."""
    bad = plugin("bad", "scorer", broken, deadline_ms=20, text=True)
    async with running_gateway(tmp_path, models(), plugins=[bad]) as gateway:
        before = time.monotonic()
        answers = [(await ask(gateway)).headers["x-weighbridge-target"] for _ in range(5)]
        assert time.monotonic() - before < 20
        assert answers == ["cheap"] * 5
        ready = await _ready(gateway)
        out = broken == "Hangs"
        assert ready["checks"]["plugins"] is not out
        assert ("(bad)" in ready["reason"]) == out
        assert ready["status"] == "ready"
        assert await metric(gateway, 'weighbridge_plugin_out{plugin="bad"}') == out


async def _ready(gateway: Running) -> dict[str, Any]:
    async with httpx.AsyncClient() as client:
        return dict((await client.get(f"{gateway.url}/readyz")).json())


async def test_an_exporter_gets_each_request_once(tmp_path: Path, house: Any) -> None:
    """Whole, streamed, refused, and one that a second target answered (LiteLLM 14340 told them twice)."""
    failing = [{"kind": "scripted", "upstream_model": "error-500"}]
    catalog = [*models(), model("broken", failing, provider="there")]
    policy = {"fallbacks": {"broken": ["dear"]}}
    async with running_gateway(
        tmp_path, catalog, plugins=[plugin("lines", "exporter", "Keeps")], policy=policy
    ) as gateway:
        client = openai.AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key, max_retries=0)
        await client.chat.completions.create(model="cheap", messages=ASK)
        async for _ in await client.chat.completions.create(model="dear", messages=ASK, stream=True):
            pass
        await client.chat.completions.create(model="broken", messages=ASK)
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nobody", messages=ASK)
        await client.close()
    found = [(each.asked_model or each.error_code, each.target_id, each.stream, each.status) for each in house.KEPT]
    assert sorted(found, key=str) == sorted(
        [
            ("cheap", "cheap", False, 200),
            ("dear", "dear", True, 200),
            ("broken", "dear", False, 200),
            ("model_not_found", None, False, 404),
        ],
        key=str,
    )
    assert len({each.request_id for each in house.KEPT}) == 4
    assert "hello" not in repr(house.KEPT)


async def test_a_cut_stream_is_told_as_one(tmp_path: Path, house: Any) -> None:
    """The end of a stream and its failure are two things; llm-d's plug-ins are told of the first alone (GIE 2079)."""
    cut = [{"kind": "scripted", "upstream_model": "cut-2"}]
    async with (
        running_gateway(
            tmp_path, [model("cut", cut, provider="there")], plugins=[plugin("lines", "exporter", "Keeps")]
        ) as gateway,
        asking(gateway, authorization=f"Bearer {gateway.key}") as client,
    ):
        asked = {"model": "cut", "messages": ASK, "stream": True}
        assert "error" in (await client.post("/chat/completions", json=asked)).text
    (told,) = house.KEPT
    assert (told.status, told.error_code, told.target_id) == (200, "upstream_stream_cut", "cut")


async def test_both_planes_have_them_and_a_reload_makes_no_second_ones(tmp_path: Path, house: Any) -> None:
    """Kong's control plane did not know what its data plane ran (12639); each reload of LiteLLM left a flush loop (33065)."""
    named = [
        plugin("lines", "exporter", "Keeps"),
        plugin("residency", "scorer", "Vetoes", settings={"targets": ["cheap"]}),
    ]
    async with running_gateway(tmp_path, models(), plugins=named) as gateway:
        for live in (gateway.live, gateway.control.live):
            assert live.plugins.names == ("lines", "residency")
            assert live.line._router._scoring is not None
        before = [each.get_name() for each in asyncio.all_tasks()].count("exporter-lines")
        gateway.reload()
        await asyncio.sleep(0)
        assert [each.get_name() for each in asyncio.all_tasks()].count("exporter-lines") == before == 2
        assert (await ask(gateway)).headers["x-weighbridge-target"] == "dear"
    assert len(house.KEPT) == 1


async def test_a_hanging_exporter_costs_no_caller_anything(tmp_path: Path, house: Any) -> None:
    """Requests are answered as without it, and the gateway stops in time."""
    slow = plugin("slow", "exporter", "HangsExporting", deadline_ms=20)
    async with running_gateway(tmp_path, models(), plugins=[slow]) as gateway:
        answers = await asyncio.gather(*(ask(gateway, "cheap") for _ in range(30)))
        assert {each.status_code for each in answers} == {200}
    assert house.KEPT == []


async def new_key(gateway: Running, team_id: str, name: str, **options: Any) -> str:
    environment = Environment(data_dir=gateway.config_path.parent, pepper=SecretStr(PEPPER))
    pepper = peppers(load(gateway.config_path, environment), environment)[0]
    return (await gateway.accounts.create_key(team_id, name, pepper, **options)).plaintext


async def test_an_authenticator_maps_to_a_key_that_there_is_and_to_no_more(tmp_path: Path, house: Any) -> None:
    """A caller whom it knows is served and booked as that key; unknown ones, other organisations' keys, keys that are over and keys
    with a role are not. LiteLLM's custom auth passed by budgets and models unless asked not to (35526), and made admins (41226).
    """
    knows = plugin("portal", "authenticator", "Knows", headers=["X-User"])
    async with running_gateway(
        tmp_path, models(), plugins=[knows], limits={"key": {"requests_per_minute": 2}}
    ) as gateway:
        await gateway.accounts.create_team("tight", name="Tight", allowed_models=["dear"])
        await new_key(gateway, "tight", "portal")
        await new_key(gateway, "team_a", "boss", role="admin")
        await new_key(gateway, "team_a", "over", expires_at=datetime.now(UTC) + timedelta(seconds=0.01))
        await gateway.accounts.create_organisation("others", "Others")
        await gateway.accounts.create_team("strangers", name="Strangers", organisation_id="others")
        await new_key(gateway, "strangers", "portal")
        await asyncio.sleep(0.02)
        forbidden = await ask(gateway, "cheap", x_user="tight/portal")
        assert forbidden.status_code in {400, 403, 404}
        for user in ("team_a/boss", "team_a/over", "team_a/nobody", "nobody/portal", "strangers/portal"):
            refused = await ask(gateway, "dear", x_user=user)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key"), user
        assert (await ask(gateway, "dear", x_other="tight/portal")).status_code == 401
        codes = [(await ask(gateway, "dear", x_user="tight/portal")).status_code for _ in range(3)]
        assert 429 in codes
        # Its privilege ends with calling models.
        async with asking(gateway, x_user="team_a/boss") as client:
            assert (await client.get(f"{gateway.url}/v1/admin/teams")).status_code == 401


async def test_own_keys_come_first_and_no_plugin_sees_them(tmp_path: Path, house: Any) -> None:
    """Not even where the header that it is granted holds one."""
    knows = plugin("portal", "authenticator", "Knows", headers=["x-user", "authorization", "x-api-key"])
    async with running_gateway(tmp_path, models(), plugins=[knows]) as gateway:
        assert (await ask(gateway)).status_code == 200
        assert (await ask(gateway, x_api_key=gateway.key, x_user="nobody/at-all")).status_code == 200
        assert (await ask(gateway, authorization=f"Bearer {gateway.key}x")).status_code == 401
        assert house.SEEN == []
        assert (await ask(gateway, authorization="Bearer of-the-portal")).status_code == 401
        assert house.SEEN == [{"authorization": "Bearer of-the-portal"}]


async def test_a_hanging_authenticator_is_closed_for_its_callers_alone(tmp_path: Path, house: Any) -> None:
    """503 rather than an open door, at once after three; own keys do not notice."""
    bad = plugin("portal", "authenticator", "HangsAuthenticating", deadline_ms=20, headers=["x-user"])
    async with running_gateway(tmp_path, models(), plugins=[bad]) as gateway:
        for _ in range(5):
            refused = await ask(gateway, x_user="team_a/tests")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "plugin_unavailable")
            assert "retry-after" in refused.headers
        assert (await ask(gateway)).status_code == 200
        assert (await _ready(gateway))["checks"]["plugins"] is False


async def test_a_signed_header_of_a_portal(tmp_path: Path, house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example: a good signature, a forged one, and one that is over."""
    monkeypatch.setenv("PORTAL_SECRET", "shared")
    portal = plugin(
        "portal",
        "authenticator",
        "signed_header:SignedHeader",
        headers=["x-portal-user"],
        settings={"secret": "env:PORTAL_SECRET"},
    )

    def signed(until_s: float, secret: bytes = b"shared") -> str:
        said = f"team_a/tests/{int(time.time() + until_s)}"
        return f"{said}/{hmac.new(secret, said.encode(), hashlib.sha256).hexdigest()}"

    async with running_gateway(tmp_path, models(), plugins=[portal]) as gateway:
        assert (await ask(gateway, x_portal_user=signed(60))).status_code == 200
        assert (await ask(gateway, x_portal_user=signed(60, b"other"))).status_code == 401
        assert (await ask(gateway, x_portal_user=signed(-60))).status_code == 401
        (row,) = await gateway.rows("entry = 'settle'")
        assert row["team_id"] == "team_a"


async def generate(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """text-generation-inference's own API."""
    details = {"finish_reason": "eos_token", "generated_tokens": 2, "input_length": 9}
    if request.path.endswith("/generate"):
        return web.json_response({"generated_text": "Hello you", "details": details})
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    for piece, last in (("Hello", False), (" you", True)):
        told = {"token": {"text": piece, "special": False}, "details": details if last else None}
        await reply.write(f"data:{json.dumps(told)}\n\n".encode())
    return reply


async def test_a_dialect_writes_requests_and_reads_replies(
    tmp_path: Path, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example, whole and streamed, by the official client; the key is the gateway's, and so are the books."""
    monkeypatch.setenv("TGI_KEY", "of-the-engine")
    speaks = plugin("tgi", "dialect", "tgi_generate:TgiGenerate", text=True)
    async with provider(generate) as engine:
        spoken = {"kind": "openai", "base_url": engine.base_url, "dialect": "tgi", "api_key": "env:TGI_KEY"}
        async with running_gateway(tmp_path, [model("engine", [spoken])], plugins=[speaks]) as gateway:
            client = openai.AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key, max_retries=0)
            whole = await client.chat.completions.create(model="engine", messages=ASK)
            assert whole.choices[0].message.content == "Hello you"
            assert whole.usage is not None
            assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (9, 2)
            stream = await client.chat.completions.create(model="engine", messages=ASK, stream=True)
            assert (
                "".join([each.choices[0].delta.content or "" async for each in stream if each.choices]) == "Hello you"
            )
            with pytest.raises(openai.BadRequestError):
                await client.embeddings.create(model="engine", input="hello")
            await client.close()
            rows = await gateway.rows("entry = 'settle'")
    assert [(row["input_tokens"], row["output_tokens"]) for row in rows] == [(9, 2), (9, 2)]
    assert "<|user|>\nSay hello." in engine.bodies[0]["inputs"]
    assert engine.requests[0].headers["authorization"] == "Bearer of-the-engine"


async def test_the_lines_of_the_example_exporter(tmp_path: Path, house: Any) -> None:
    """They are on the disk once the gateway has stopped."""
    file = tmp_path / "finished.jsonl"
    lines = plugin("lines", "exporter", "lines_file:LinesFile", settings={"file": str(file)})
    async with running_gateway(tmp_path, models(), plugins=[lines]) as gateway:
        await ask(gateway, "cheap")
    (line,) = file.read_text().splitlines()
    assert json.loads(line)["target_id"] == "cheap"


async def test_a_pluginless_gateway_tells_of_none(tmp_path: Path) -> None:
    """Off is off: no check, no series."""
    async with running_gateway(tmp_path, models()) as gateway:
        assert (await ask(gateway)).status_code == 200
        assert "plugins" not in (await _ready(gateway))["checks"]
        assert await metric(gateway, "weighbridge_plugin_calls_total") == 0


async def test_a_worker_of_its_own_is_not_held_by_what_hangs(tmp_path: Path) -> None:
    """As a process, with the loop and the signals that it has there: it answers, and stops when it is told to."""
    named = [
        plugin("hangs", "scorer", "tests.gateway.plugins.hanging:HangingScorer"),
        plugin("loops", "authenticator", "tests.gateway.plugins.hanging:LoopingAuthenticator", headers=["x-user"]),
        {"name": "bad", "kind": "scorer", "use": "tests.gateway.plugins.hanging:Gone"},
    ]
    site = await make_site(tmp_path, models(), plugins=named[:2], classifier={"enabled": False})
    async with serving(site) as server, httpx.AsyncClient(base_url=server.base_url, timeout=60) as client:
        asked = {"model": "auto", "messages": ASK}
        answers = [
            await client.post("/chat/completions", json=asked, headers={"authorization": f"Bearer {site.key}"})
            for _ in range(4)
        ]
        assert [each.headers.get("x-weighbridge-target") for each in answers] == ["cheap"] * 4
        assert (await client.post("/chat/completions", json=asked, headers={"x-user": "a"})).status_code == 503
        assert "the plug-in hangs was late 3 times in a row" in server.log
        assert await server.stop() == 0
    site.configure(models(), plugins=named, classifier={"enabled": False})
    refused = start(site, "refused")
    assert await refused.ended() != 0
    assert "plugins.bad: the module tests.gateway.plugins.hanging has no Gone" in refused.log
    assert "Traceback" not in refused.log
