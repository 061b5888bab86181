"""Rules that ask a service or a plug-in about answers, through the whole gateway: whole and streamed, on each wire and on every way.

The cases are other gateways' faults: streams that nobody looked at (BerriAI/litellm#35257, api7/aisix#204, majiayu000/litellm-rs#1127),
text that was out before its verdict (aisix#466, cisco-ai-defense/defenseclaw#99), calls of tools that were left out (aisix#546, #558),
a slow service that let pass (MitulShah1/openai-agents-go#103) or held up every request (agentgateway#2387).
"""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.batch.line_protocol import LineRequest
from proxy.errors import GuardUnavailable
from proxy.routes import WIRE_AT
from tests.providers.wires import LITELLM_WARNINGS
from tests.scenarios.test_guard import OTHERS, Provider, provider, running
from tests.scenarios.test_guard_services import Service, service
from tests.scenarios.test_guarded_answers import CARD, HER_MAIL, WEIGH, WIRES, Script, filtered, house

pytestmark = LITELLM_WARNINGS
__all__ = ["provider"]
NAMED: Any = {"tools": [{"type": "function", "function": WEIGH}]}
_PLUGINS = '''
from weighbridge.plugins import Span, Verdict

class House:
    """Blocks what is awful in answers, and lets all pass in requests."""
    protocol = 1

    async def check(self, texts, facts):
        answers = [(at, each.value) for at, each in enumerate(texts) if (each.direction, each.role) == ("output", "assistant")]
        bad = [Span(text=at, start=0, end=len(said), kind="awful") for at, said in answers if "awful" in said]
        return Verdict(action="mask" if bad else "pass", spans=tuple(bad))
'''


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADE_UP_KEY", "made-up")
    monkeypatch.setenv("MADE_UP_ANTHROPIC_KEY", "sk-ant-made-up-0123456789")


def rule(of: Service, **fields: Any) -> dict[str, Any]:
    # Far later than ever needed: a machine that is busy must not fail the test.
    return {"name": "house", "kind": "http", "url": of.url, "timeout_ms": 30_000, "output": "block", **fields}


def asked_of(judge: Service) -> str:
    return json.dumps(judge.asked)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", WIRES)
async def test_what_a_service_flags_goes_to_nobody(tmp_path: Path, wire: str, stream: bool) -> None:
    """No byte of it leaves, the end is the wire's own, what was used is booked, and it is nobody's failure."""
    async with service() as judge, house(tmp_path, [rule(judge)]) as here:
        here.mouth.script = Script(text="It begins nicely, and then it is awful. It goes on.")
        said = await here.ask(wire, stream=stream)
        assert said.end == filtered(wire)
        assert said.text == ""
        assert "nicely" not in said.raw
        rows = await here.gateway.rows()
        assert [row["entry"] for row in rows] == ["reserve", "settle"]
        assert (rows[-1]["status"], rows[-1]["flags"], rows[-1]["output_tokens"] > 0) == (200, "[]", True)
        assert len(here.mouth.sent) == 1
        here.mouth.script = Script(
            text="It is nice all along.", arguments='{"a": "x\\ny"}' if wire != "completions" else ""
        )
        said = await here.ask(wire, stream=stream, **(NAMED if wire == "chat" else {}))
        assert said.text == "It is nice all along."
        assert said.arguments == "" or json.loads(said.arguments) == {"a": "x\ny"}
        assert len(judge.asked) == 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", ["chat", "responses", "messages", "messages as written", "responses as written"])
async def test_calls_and_thoughts_are_asked_about(tmp_path: Path, wire: str, stream: bool) -> None:
    """What a call says, as it is meant; and nothing that its caller said."""
    async with service() as judge, house(tmp_path, [rule(judge)]) as here:
        more = NAMED if wire == "chat" else {}
        here.mouth.script = Script(text="ok", arguments='{"to": "an \\u0061wful person"}', most=3)
        said = await here.ask(wire, "my own words", stream=stream, **more)
        assert said.end == filtered(wire)
        assert "person" not in said.raw
        assert "my own words" not in asked_of(judge)
        if not wire.startswith("responses"):
            here.mouth.script = Script(text="ok", thought="How awful.")
            assert (await here.ask(wire, stream=stream, **more)).end == filtered(wire)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_service_sees_masks_and_the_caller_its_own_values(tmp_path: Path, stream: bool) -> None:
    """What must not leave to a provider does not leave to a service either, not even what a model says by itself."""
    rules = [{"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"}]
    async with service() as judge, house(tmp_path, [*rules, rule(judge)]) as here:
        here.mouth.script = Script(text="I wrote to {mask} and joe@example.org.")
        said = await here.ask("chat", f"mail {HER_MAIL}", stream=stream)
        assert said.text == f"I wrote to {HER_MAIL} and joe@example.org."
        assert "[EMAIL_" in asked_of(judge)
        assert "@example" not in asked_of(judge)


@pytest.mark.parametrize("wire", ["chat", "responses", "messages", "messages as written"])
@pytest.mark.parametrize("on_error", ["closed", "open"])
async def test_an_answer_that_nobody_judged(tmp_path: Path, wire: str, on_error: str) -> None:
    """Down, moved or odd: 503, or as a stream its error; or it passes, which is told. Its model is paid, and at no fault."""

    async def down(_body: Any) -> web.StreamResponse:
        return web.Response(status=500)

    async def moved(_body: Any) -> web.StreamResponse:
        raise web.HTTPFound("/elsewhere")

    async def garbage(_body: Any) -> web.StreamResponse:
        return web.Response(text='{"results": [{"flagged": "no"}]}')

    async def too_few(_body: Any) -> web.StreamResponse:
        return web.json_response({"results": []})

    async with service() as judge, house(tmp_path, [rule(judge, on_error=on_error)]) as here:
        here.mouth.script = Script(text="Private words.")
        for answer in (down, moved, garbage, too_few):
            judge.answer = answer
            for stream in (False, True):
                told = await reply(here, wire, stream=stream)
                assert ("Private" in told.text.replace('","', "")) == (on_error == "open"), told.text
                if on_error == "open":
                    assert told.status_code == 200
                    assert stream or told.headers["x-weighbridge-guard"] == "house=open:1"
                else:
                    assert "guard_unavailable" in told.text or "house" in told.text
                    assert stream or (told.status_code == 503 and told.headers["retry-after"])
                await soothe(judge, here)
        rows = [row for row in await here.gateway.rows() if row["entry"] == "settle"]
        assert all(row["output_tokens"] > 0 for row in rows)


@pytest.mark.parametrize("on_error", ["closed", "open"])
async def test_a_service_that_hangs_or_drips_keeps_its_deadline(tmp_path: Path, on_error: str) -> None:
    """Whatever it sends meanwhile, whole and streamed."""
    never = asyncio.Event()
    service_of = Service()

    async def drips(request: web.Request) -> web.StreamResponse:
        told = web.StreamResponse(headers={"content-type": "application/json"})
        await told.prepare(request)
        with contextlib.suppress(ConnectionError):
            while not never.is_set():
                await told.write(b" ")
                await asyncio.sleep(0.01)
        return told

    app = web.Application()
    app.router.add_post("/{path:.*}", drips)
    async with TestServer(app) as server:
        service_of.url = str(server.make_url("/v1/judge"))
        async with house(tmp_path, [rule(service_of, on_error=on_error, timeout_ms=150)]) as here:
            here.mouth.script = Script(text="Private words.")
            for stream in (False, True):
                async with asyncio.timeout(30):
                    told = await reply(here, "chat", stream=stream)
                assert ("Private" in told.text) == (on_error == "open")
        never.set()


async def soothe(judge: Service, here: Any) -> None:
    """Let the service answer once, so that its failures are not in a row."""
    was, judge.answer = judge.answer, judge.judge
    await here.ask("chat", stream=False)
    judge.answer = was


async def reply(here: Any, wire: str, *, stream: bool) -> httpx.Response:
    turns = [{"role": "user", "content": "hi"}]
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"model": "gpt", "messages": turns}),
        "responses": ("/v1/responses", {"model": "gpt", "input": "hi"}),
        "messages": ("/v1/messages", {"model": "gpt", "max_tokens": 9, "messages": turns}),
        "messages as written": ("/v1/messages", {"model": "claude", "max_tokens": 9, "messages": turns}),
    }
    path, body = asked[wire]
    async with httpx.AsyncClient(timeout=60) as ask:
        headers = {"authorization": f"Bearer {here.gateway.key}"}
        return await ask.post(f"{here.gateway.url}{path}", json={**body, "stream": stream}, headers=headers)


@pytest.mark.parametrize("wire", ["chat", "completions", "responses", "messages", "messages as written"])
async def test_by_windows_what_was_judged_goes_out_and_a_block_stops_the_call(tmp_path: Path, wire: str) -> None:
    """The upstream never ends by itself: what is before the window that is blocked is out, the rest is not."""
    nice = "One nice sentence after another. " * 40
    async with service() as judge, house(tmp_path, [rule(judge, window_chars=600)]) as here:
        here.mouth.waits = True
        here.mouth.script = Script(text=nice + "Then it is awful. " + "More and more. " * 60, most=40)
        async with asyncio.timeout(60):
            said = await here.ask(wire, stream=True)
            await here.mouth.gone.wait()
        assert said.end == filtered(wire)
        # How much is out hangs on what came at once.
        assert nice.startswith(said.text)
        assert "awful" not in said.raw


async def test_a_window_is_shown_what_came_before_it(tmp_path: Path) -> None:
    """A sentence over the edge of two is read as one."""
    async with service() as judge, house(tmp_path, [rule(judge, window_chars=600)]) as here:
        for before in range(590, 612):
            here.mouth.script = Script(text="x" * before + " awful " + "y" * 900, most=700, seed=before)
            said = await here.ask("chat", stream=True)
            assert said.end == "content_filter", before
            assert "awful" not in said.text


async def test_flagged_is_told_and_goes_out(tmp_path: Path) -> None:
    """In the header of a whole answer."""
    async with service() as judge, house(tmp_path, [rule(judge, output="flag")]) as here:
        here.mouth.script = Script(text="How awful.")
        told = await reply(here, "chat", stream=False)
        assert (told.status_code, told.headers["x-weighbridge-guard"]) == (200, "house=flag:1")
        assert "awful" in (await reply(here, "chat", stream=True)).text


async def test_a_kept_answer_is_asked_about_each_time(tmp_path: Path) -> None:
    """What the cache has is as its model said it."""
    async with service() as judge, house(tmp_path, [rule(judge)], cache={"ttl_s": 600, "default": "on"}) as here:
        here.mouth.script = Script(text="It is nice.")
        for _ in range(2):
            await here.ask("chat", stream=False, temperature=0)
        assert len(here.mouth.sent) == 1
        assert len(judge.asked) == 2

        async def awful(body: Any) -> web.StreamResponse:
            return web.json_response({"results": [{"flagged": True}] * len(body["input"])})

        judge.answer = awful
        said = await here.ask("chat", stream=False, temperature=0)
        assert (said.end, said.text) == ("content_filter", "")


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    import sys

    (tmp_path / "answering_house.py").write_text(_PLUGINS)
    monkeypatch.syspath_prepend(tmp_path)
    yield [{"name": "house", "kind": "guard", "use": "answering_house:House", "text": True, "deadline_ms": 30_000}]
    sys.modules.pop("answering_house", None)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_plugin_judges_answers(tmp_path: Path, wire: str, stream: bool, plugins: list[dict[str, Any]]) -> None:
    """What it would have masked is not given: in an answer nothing is rewritten by whoever is asked."""
    rules = [{"name": "house", "kind": "plugin", "use": "house", "output": "flag"}]
    async with house(tmp_path, rules, plugins=plugins) as here:
        here.mouth.script = Script(text="So awful, is it not.")
        said = await here.ask(wire, "awful", stream=stream)
        assert said.end == filtered(wire)
        assert "is it not" not in said.raw
        here.mouth.script = Script(text="So nice.")
        assert (await here.ask(wire, "awful", stream=stream)).text == "So nice."


@pytest.mark.parametrize(
    "way", ["socket of responses", "in the background", "line of a batch", "playground, ask", "azure"]
)
async def test_no_way_goes_round_it(tmp_path: Path, provider: Provider, way: str) -> None:
    """Each answer is asked about, and one that is flagged is blocked there, too."""
    async with service() as judge:

        async def awful(body: Any) -> web.StreamResponse:
            return web.json_response({"results": [{"flagged": True}] * len(body["input"])})

        judge.answer = awful
        async with running(tmp_path, provider, guard={"rules": [rule(judge)]}) as gateway:
            await OTHERS[way](gateway, "hello")
            async with httpx.AsyncClient() as ask:
                told = "".join([(await ask.get(f"{url}/metrics")).text for url in (gateway.url,)])
        assert judge.asked
        assert 'action="block",kind="http",side="output"' in told


async def test_no_model_is_paid_for_an_answer_that_cannot_be_judged(tmp_path: Path) -> None:
    """Once the service is left alone: 503 before anything is sent. An open rule goes on."""

    async def down(_body: Any) -> web.StreamResponse:
        return web.Response(status=500)

    async with service() as judge, house(tmp_path, [rule(judge)]) as here:
        judge.answer = down
        here.mouth.script = Script(text="Private words.")
        for _ in range(7):
            told = await reply(here, "chat", stream=True)
            assert "guard_unavailable" in told.text
            assert "Private" not in told.text
        assert (told.status_code, len(here.mouth.sent)) == (503, 5)


async def test_lines_of_a_providers_batch_are_judged_when_they_come(tmp_path: Path, provider: Provider) -> None:
    """By rules of ours and by whoever is asked; without a verdict they stay where they are."""
    from proxy.provider_batch_lines import PipelineOffers

    rules = [{"name": "cards", "kind": "pii", "entities": ["card"], "output": "block"}]
    async with service() as judge, running(tmp_path, provider, guard={"rules": [*rules, rule(judge)]}) as gateway:
        keys = await gateway.accounts.list_keys()
        caller = await gateway.accounts.caller_of(keys[0].key_id)
        assert caller is not None
        line = gateway.control.live.line
        offers = PipelineOffers(line, lambda path: WIRE_AT[path], line._clock, lambda: 0)
        body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}

        async def answered(name: str, text: str) -> tuple[Any, Any]:
            asked = LineRequest(
                request_id=name,
                caller=caller,
                endpoint="/v1/chat/completions",
                body=json.dumps(body).encode(),
                priority=0,
            )
            made = await offers.offers(asked, flex=False)
            assert made.handing is not None
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}
            told = {
                "id": "c",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [choice],
                "usage": usage,
            }
            return await offers.answered(asked, made.handing.reserve, json.dumps(told).encode())

        for number, text in enumerate(("awful, and more", f"{CARD}, and more")):
            reply, entry = await answered(f"req_{number}", text)
            assert reply.status == 200
            assert b"and more" not in reply.body
            assert b"content_filter" in reply.body
            assert entry.output_tokens == 5

        async def down(_body: Any) -> web.StreamResponse:
            return web.Response(status=500)

        judge.answer = down
        with pytest.raises(GuardUnavailable):
            await answered("req_9", "nice")


async def test_a_service_that_fails_is_left_alone(tmp_path: Path) -> None:
    """Five waited for their deadline; the sixth is told at once, with when to come again."""
    asked = 0

    async def down(_body: Any) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.Response(status=500)

    async with service() as judge, house(tmp_path, [rule(judge, output="off", input="block")]) as here:
        judge.answer = down
        for _ in range(7):
            told = await reply(here, "chat", stream=False)
            assert told.status_code == 503
        assert asked == 5
        assert 1 <= float(told.headers["retry-after"]) <= 5
        with pytest.raises(openai.APIStatusError, match="house"):
            await here.ask("chat", stream=True)
