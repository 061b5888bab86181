"""The guard on every way to a model: what providers are sent, and what callers are told. Numbers in brackets are those of the regression
cases in issue 40.
"""

import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anthropic
import httpx
import openai
import pytest
from aiohttp import web

from accounts.store import AccountStore
from cost.end_users import booked
from guard.inspector import Guard
from guard.ruleset import Ruleset, Verdict
from providers.wire import upstream_body
from proxy.batch.line_protocol import LineRequest
from proxy.routes import WIRE_AT
from tests.processes import until
from tests.providers.wires import anthropic_whole
from tests.providers.wires import provider as anthropics
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_background_responses import ended as response_ended
from tests.scenarios.test_batch import FAST, ended, line, results, submit
from tests.scenarios.test_model_facts import client
from tests.scenarios.test_open_responses import socket_of

CARD: Final = "4111 1111 1111 1111"
MAIL: Final = "jane.doe@example.com"
BIRD: Final = "bluebird"
RULES: Final[list[dict[str, Any]]] = [
    {"name": "cards", "kind": "pii", "entities": ["card"], "input": "block"},
    {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"},
    {"name": "project", "kind": "words", "words": [BIRD], "input": "own"},
]
USAGE: Final = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class Provider:
    """A server of all OpenAI's routes that keeps what it was sent, byte for byte."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.paths: list[str] = []
        self.url = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.sent.append(raw)
        self.paths.append(request.path)
        if request.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.1]}]
            return web.json_response({"object": "list", "data": data, "model": "m", "usage": USAGE})
        if request.path.endswith("/rerank"):
            return web.json_response({"results": [{"index": 0, "relevance_score": 0.5}], "usage": USAGE})
        if "/audio/tr" in request.path:
            return web.json_response({"text": "said", "usage": {"type": "duration", "seconds": 1}})
        if request.path.endswith("/moderations"):
            return web.json_response({"id": "m", "model": "m", "results": [{"flagged": False}]})
        body = json.loads(raw)
        if body.get("stream"):
            return await streamed(request)
        message = {"role": "assistant", "content": "fine"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": USAGE}
        )

    @property
    def all(self) -> str:
        """Everything that it was sent, as one text."""
        return b"\n".join(self.sent).decode("utf-8", "replace")


async def streamed(request: web.Request) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    for delta, end in (({"role": "assistant", "content": "fine"}, None), ({}, "stop")):
        chunk = {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": end}],
        }
        await reply.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await reply.write(b"data: [DONE]\n\n")
    return reply


@contextlib.asynccontextmanager
async def providing() -> AsyncIterator[Provider]:
    served = Provider()
    app = web.Application()
    app.router.add_post("/{path:.*}", served.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield served
    finally:
        await runner.cleanup()


def house(bought: Provider, own: Provider | None = None) -> list[dict[str, Any]]:
    """Models of a provider for all routes, and two of one's own."""

    def there(kind: str = "openai", **fields: Any) -> list[dict[str, Any]]:
        return [
            {
                "kind": kind,
                "base_url": bought.url if kind == "openai" else (own or bought).url,
                "upstream_model": "m",
                **fields,
            }
        ]

    models = [
        model(
            "chat",
            there(batch_api="openai"),
            prices={"input": "2", "output": "10", "batch_discount": "0.5", "version": "test"},
        ),
        model("vectors", there(), capabilities=["embeddings"]),
        model("ranker", there(), capabilities=["rerank"]),
        model("moderator", there(), capabilities=["moderation"]),
        model("painter", there(), capabilities=["images"], prices={"units": {"image": "0.04"}, "version": "test"}),
        model("speaker", there(), capabilities=["speech"], prices={"units": {"character": "0.1"}, "version": "test"}),
        model(
            "writer", there(), capabilities=["transcription"], prices={"units": {"second": "0.1"}, "version": "test"}
        ),
    ]
    if own is not None:
        models += [
            model("ours", there("vllm"), capability=0.2),
            model("our-vectors", there("vllm"), capabilities=["embeddings"]),
            model("mixed", [{"name": "a", **there("vllm")[0]}, {"name": "b", **there()[0]}], capability=0.1),
        ]
    return models


Told = tuple[int, str]
"""The status and the error's code that a caller is told."""
Way = Callable[[Running, str], Awaitable[Told]]


async def posted(gateway: Running, path: str, body: Any, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as ask:
        return await ask.post(
            f"{gateway.url}{path}", json=body, headers={"authorization": f"Bearer {gateway.key}", **headers}
        )


def code_of(reply: httpx.Response) -> Told:
    if reply.status_code == 200:
        return 200, ""
    error = reply.json()["error"]
    return reply.status_code, error.get("code") or error.get("type")


def by_json(path: str, body: Callable[[str], dict[str, Any]]) -> Way:
    async def way(gateway: Running, text: str) -> Told:
        return code_of(await posted(gateway, path, body(text)))

    return way


def by_form(path: str, model_name: str, part: str) -> Way:
    async def way(gateway: Running, text: str) -> Told:
        async with httpx.AsyncClient(timeout=60) as ask:
            sent = {"model": model_name, "prompt": text}
            files = {part: ("a.bin", b"\x89PNG\r\n\x1a\n" * 20, "image/png")}
            reply = await ask.post(
                f"{gateway.url}{path}", data=sent, files=files, headers={"authorization": f"Bearer {gateway.key}"}
            )
            return code_of(reply)

    return way


def messages_of(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def chat_of(text: str) -> dict[str, Any]:
    return {"model": "chat", "messages": messages_of(text)}


async def by_socket(gateway: Running, text: str) -> Told:
    async with socket_of(gateway) as socket:
        events = await socket.events(model="chat", input=text)
    last = events[-1]
    return (last["status"], last["code"]) if last["type"] == "error" else (200, "")


async def by_earlier_turn(gateway: Running, text: str) -> Told:
    """(31) What was kept before a rule held is looked at with each turn that goes on from it."""
    section = gateway.live.line.guard
    assert section is not None
    rules = section._floor
    section.adopt(section_of([]))
    async with client(gateway) as ask:
        first = await ask.responses.create(
            model="chat", input=[{"role": "user", "content": "hello"}, {"role": "developer", "content": text}]
        )
    section.adopt(section_of([each.model_dump(exclude_defaults=True) for each in rules]))
    served_before = len(PROVIDERS[-1].sent)
    reply = await posted(
        gateway, "/v1/responses", {"model": "chat", "input": "go on", "previous_response_id": first.id}
    )
    # What was sent before the rule held is nobody's leak.
    del PROVIDERS[-1].sent[:served_before]
    return code_of(reply)


def section_of(rules: list[dict[str, Any]]) -> Any:
    from guard.guard_config import GuardSection

    return GuardSection.model_validate({"rules": rules})


async def in_background(gateway: Running, text: str) -> Told:
    reply = await posted(gateway, "/v1/responses", {"model": "chat", "input": text, "background": True})
    if reply.status_code != 200:
        return code_of(reply)
    async with client(gateway) as ask:
        found = await response_ended(ask, reply.json()["id"])
    return (400, found.error.code) if found.error is not None else (200, "")


async def as_line(gateway: Running, text: str) -> Told:
    """(27) Alone: the line beside it is answered."""
    async with client(gateway) as ask:
        asked = [line("good", "chat"), line("other", "chat") | {"body": chat_of(text)}]
        batch = await ended(ask, await submit(ask, asked))
        answers = {
            each["custom_id"]: each["response"]
            for name in (batch.output_file_id, batch.error_file_id)
            for each in await results(ask, name)
        }
    assert answers["good"]["status_code"] == 200
    told = answers["other"]
    return told["status_code"], (told["body"].get("error") or {}).get("code", "")


async def handed_over(gateway: Running, text: str) -> Told:
    """A line for a provider's own batch API, as it is made there: nothing of it is sent by this test."""
    from accounts.store import AccountStore as Store
    from proxy.errors import Refused, error_reply
    from proxy.provider_batch_lines import PipelineOffers

    keys = await Store(gateway.engine).list_keys()
    caller = await gateway.accounts.caller_of(keys[0].key_id)
    assert caller is not None
    line_ = gateway.control.live.line
    offers = PipelineOffers(line_, lambda path: WIRE_AT[path], line_._clock, lambda: 0)
    asked = LineRequest(
        request_id="req_1",
        caller=caller,
        endpoint="/v1/chat/completions",
        body=json.dumps(chat_of(text)).encode(),
        priority=0,
    )
    try:
        made = await offers.offers(asked, flex=False)
    except Refused as error:
        told = error_reply(error)
        return told.status, told.code or ""
    if made.handing is not None:
        PROVIDERS[-1].sent.append(made.handing.body)
    return 200, ""


async def by_line_of_the_gateway(gateway: Running, text: str) -> Told:
    """The playground and Ask ask this way, for a key that they name."""
    keys = await gateway.accounts.list_keys()
    caller = await gateway.accounts.caller_of(keys[0].key_id)
    assert caller is not None
    asked = LineRequest(
        request_id="req_2",
        caller=caller,
        endpoint="/v1/chat/completions",
        body=json.dumps(chat_of(text)).encode(),
        priority=0,
        tier="interactive",
    )
    reply = await gateway.parts.jobs.answering.answer(asked)
    return reply.status, reply.code


PROVIDERS: list[Provider] = []
"""The provider of the test that runs."""
ROUTES: Final[dict[str, Way]] = {
    "/v1/chat/completions": by_json("/v1/chat/completions", chat_of),
    "/v1/completions": by_json("/v1/completions", lambda text: {"model": "chat", "prompt": text}),
    "/v1/responses": by_json("/v1/responses", lambda text: {"model": "chat", "input": text}),
    "/v1/responses/input_tokens": by_json("/v1/responses/input_tokens", lambda text: {"model": "chat", "input": text}),
    "/v1/responses/compact": by_json("/v1/responses/compact", lambda text: {"model": "chat", "input": text}),
    "/v1/messages": by_json(
        "/v1/messages", lambda text: {"model": "chat", "max_tokens": 9, "messages": messages_of(text)}
    ),
    "/v1/messages/count_tokens": by_json(
        "/v1/messages/count_tokens", lambda text: {"model": "chat", "messages": messages_of(text)}
    ),
    "/v1/embeddings": by_json("/v1/embeddings", lambda text: {"model": "vectors", "input": ["x", text]}),
    "/v1/rerank": by_json("/v1/rerank", lambda text: {"model": "ranker", "query": "x", "documents": [text]}),
    "/rerank": by_json("/rerank", lambda text: {"model": "ranker", "query": text, "documents": ["x"]}),
    "/v2/rerank": by_json("/v2/rerank", lambda text: {"model": "ranker", "query": text, "documents": ["x"]}),
    "/v1/moderations": by_json("/v1/moderations", lambda text: {"model": "moderator", "input": text}),
    "/v1/images/generations": by_json("/v1/images/generations", lambda text: {"model": "painter", "prompt": text}),
    "/v1/images/edits": by_form("/v1/images/edits", "painter", "image"),
    "/v1/images/variations": by_form("/v1/images/variations", "painter", "image"),
    "/v1/audio/speech": by_json("/v1/audio/speech", lambda text: {"model": "speaker", "voice": "alloy", "input": text}),
    "/v1/audio/transcriptions": by_form("/v1/audio/transcriptions", "writer", "file"),
    "/v1/audio/translations": by_form("/v1/audio/translations", "writer", "file"),
}
"""A way for each path at which a model is asked."""
OTHERS: Final[dict[str, Way]] = {
    "stream": by_json("/v1/chat/completions", lambda text: {**chat_of(text), "stream": True}),
    "azure": by_json(
        "/openai/deployments/chat/chat/completions?api-version=2024-10-21", lambda text: {"messages": messages_of(text)}
    ),
    "messages stream": by_json(
        "/v1/messages", lambda text: {"model": "chat", "max_tokens": 9, "stream": True, "messages": messages_of(text)}
    ),
    "socket of responses": by_socket,
    "in the background": in_background,
    "line of a batch": as_line,
    "line for a provider": handed_over,
    "playground, ask": by_line_of_the_gateway,
}
BESIDE: Final[dict[str, str]] = {
    "proxy/judge/two_answers.py": "of the plan's candidates",
    "proxy/relay/relay.py": "of the same target's replicas",
    "proxy/pipeline.py": "the line itself",
    "proxy/learning/asking.py": "by `routed_to`, which knows `own_only`",
    "proxy/learning/llama_guard.py": "a judge on own engines, asked about the text as it would be sent",
    "proxy/learning/shadow.py": "asks with the request that was judged, which carries `own_only`",
    "proxy/learning/measuring.py": "questions of our own, none of a caller's",
    "proxy/dispatch/__init__.py": "an example",
}
"""Who calls upstreams beside the ways above, and why nothing passes there that was not judged."""


def test_every_way_to_a_model_has_an_entry() -> None:
    """A route that is added, or another place that asks upstreams, is added here by whoever adds it."""
    assert set(ROUTES) == set(WIRE_AT)
    asks = re.compile(r"ispatcher\.dispatch\(|read_answer\(|_two_answers\.dispatch\(")
    root = Path(__file__).parents[2]
    found = {
        str(path.relative_to(root))
        for folder in ("proxy", "api", "dashboards", "gateway", "selfhosted")
        for path in (root / folder).rglob("*.py")
        if asks.search(path.read_text())
    }
    assert found == set(BESIDE)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with providing() as served:
        PROVIDERS.append(served)
        try:
            yield served
        finally:
            PROVIDERS.pop()


def running(tmp_path: Path, provider: Provider, own: Provider | None = None, **sections: Any) -> Any:
    return running_gateway(tmp_path, house(provider, own), **{"guard": {"rules": RULES}, "batch": FAST, **sections})


DEAR: Final = frozenset({"/v1/images/generations", "/v1/images/edits", "/v1/images/variations", "/v1/audio/speech"})
"""Ways of which the provider here answers none."""


async def test_what_is_blocked_reaches_nobody(tmp_path: Path, provider: Provider) -> None:
    """(3, 6, 21, 22, 35, 36) 400 in the wire's own shape on every way; no call, no money, no try, and the next request is served."""
    ways = ROUTES | OTHERS
    async with running(tmp_path, provider) as gateway:
        told = {name: await way(gateway, f"my card is {CARD}") for name, way in ways.items()}
        assert told == dict.fromkeys(ways, (400, "content_filter"))
        # The line beside the refused one is another request.
        assert len(provider.sent) == len(await gateway.rows("entry = 'settle'")) == 1
        states = [
            gateway.live.breakers.state(each.deployment_id) for each in gateway.live.line.config.catalog.deployments
        ]
        assert set(states) == {"closed"}
        served = {name: (await way(gateway, "Good morning!"))[0] for name, way in ways.items() if name not in DEAR}
        assert set(served.values()) == {200}, served
    assert "4111 1111" not in provider.all


async def test_earlier_turns_are_looked_at(tmp_path: Path, provider: Provider) -> None:
    """(31) A conversation that was kept before the rule held."""
    async with running(tmp_path, provider) as gateway:
        assert await by_earlier_turn(gateway, f"card {CARD}") == (400, "content_filter")
        assert await by_earlier_turn(gateway, f"mail {MAIL}") == (200, "")
    assert provider.sent
    assert MAIL not in provider.all


ASKED_NOBODY: Final = frozenset({"/v1/responses/input_tokens", "/v1/messages/count_tokens"})
"""Ways on which tokens are estimated here, as the provider counts none."""


async def test_what_is_masked_is_sent_as_a_mask(tmp_path: Path, provider: Provider) -> None:
    """(19, 20, 22) On every way whose answer can be changed back."""
    async with running(tmp_path, provider) as gateway:
        for name, way in (ROUTES | OTHERS).items():
            if name in DEAR | {"/v1/embeddings"}:
                continue
            provider.sent.clear()
            assert await way(gateway, f"write to {MAIL}!") == (200, ""), name
            assert "jane" not in provider.all, name
            masked = re.search(r"write to \\?\[EMAIL_[a-z2-7]{6,16}\]!", provider.all) is not None
            assert masked or name in ASKED_NOBODY, name


async def test_what_could_not_be_changed_back_is_never_masked(tmp_path: Path, provider: Provider) -> None:
    """(28) It goes to own engines, and where there are none to nobody."""
    async with running(tmp_path, provider) as gateway:
        for name in DEAR | {"/v1/embeddings"}:
            assert await ROUTES[name](gateway, f"write to {MAIL}!") == (400, "content_filter"), name
    assert not provider.sent


async def test_vectors_are_made_by_own_engines(tmp_path: Path, provider: Provider) -> None:
    """(28)."""
    async with providing() as own, running(tmp_path, provider, own) as gateway:
        reply = await posted(gateway, "/v1/embeddings", {"model": "our-vectors", "input": MAIL})
        assert reply.status_code == 200
        assert reply.headers["x-weighbridge-guard"] == "email=own:1"
    assert MAIL in own.all
    assert not provider.sent


async def test_own_is_for_own_engines_alone(tmp_path: Path, provider: Provider) -> None:
    """`auto` chooses among them, a bought model is refused by its name, and a target that is half a provider's is none of ours."""
    async with providing() as own, running(tmp_path, provider, own) as gateway:
        chosen = await posted(gateway, "/v1/chat/completions", {**chat_of(BIRD), "model": "auto"})
        named = await posted(gateway, "/v1/chat/completions", chat_of(BIRD))
        mixed = await posted(gateway, "/v1/chat/completions", {**chat_of(BIRD), "model": "mixed"})
        ours = await posted(gateway, "/v1/chat/completions", {**chat_of(BIRD), "model": "ours"})
        later = await posted(
            gateway,
            "/v1/chat/completions",
            {
                "model": "auto",
                "messages": [*messages_of(BIRD), {"role": "assistant", "content": "yes"}, *messages_of("go on")],
            },
        )
    assert [code_of(each) for each in (chosen, named, mixed, ours, later)] == [
        (200, ""),
        (400, "content_filter"),
        (400, "content_filter"),
        (200, ""),
        (200, ""),
    ]
    assert {each.headers["x-weighbridge-target"] for each in (chosen, ours, later)} == {"ours"}
    assert "own engines" in named.json()["error"]["message"]
    assert not provider.sent


async def test_own_stays_when_own_engines_fail(tmp_path: Path, provider: Provider) -> None:
    """No fallback, no escalation and no second answer goes elsewhere: the request fails instead."""

    async def fails(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=500)

    async with providing() as own:
        own.serve = fails  # type: ignore[method-assign, assignment]
        models = house(provider, own)
        broken = [
            model(
                "ours", [{"kind": "vllm", "base_url": "http://127.0.0.1:9/v1", "upstream_model": "m"}], capability=0.2
            )
        ]
        models = [each for each in models if each["model_id"] not in {"ours", "mixed"}] + broken
        policy = {"aliases": {"house": ["ours", "chat"]}}
        async with running_gateway(tmp_path, models, guard={"rules": RULES}, policy=policy) as gateway:
            for name in ("auto", "house"):
                reply = await posted(
                    gateway,
                    "/v1/chat/completions",
                    {**chat_of(BIRD), "model": name},
                    **{"x-weighbridge-escalate": "true"},
                )
                assert reply.status_code in {502, 503}, reply.text
    assert not provider.sent


async def test_every_wire_has_its_own_shape(tmp_path: Path, provider: Provider) -> None:
    """As OpenAI's, Azure's and Anthropic's clients read it."""
    async with running(tmp_path, provider) as gateway:
        async with client(gateway) as ask:
            with pytest.raises(openai.BadRequestError) as refused:
                await ask.chat.completions.create(model="chat", messages=[{"role": "user", "content": CARD}])
        async with anthropic.AsyncAnthropic(api_key=gateway.key, base_url=gateway.url, max_retries=0) as claude:
            with pytest.raises(anthropic.BadRequestError) as theirs:
                await claude.messages.create(model="chat", max_tokens=9, messages=[{"role": "user", "content": CARD}])
    assert (refused.value.code, refused.value.param, refused.value.type) == (
        "content_filter",
        "prompt",
        "invalid_request_error",
    )
    body: Any = refused.value.body
    assert body["innererror"] == {
        "code": "ResponsibleAIPolicyViolation",
        "content_filter_result": {"card": {"filtered": True, "detected": True}},
    }
    told: Any = theirs.value.body
    assert (told["type"], told["error"]["type"], told["error"]["code"]) == (
        "error",
        "invalid_request_error",
        "content_filter",
    )


def breaks(*_arguments: Any, **_more: Any) -> Verdict:
    raise RuntimeError(f"a fault that repeats {CARD}")


async def test_a_guard_that_is_broken_lets_nothing_pass(
    tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(1, 2, 4) 503, and no call."""
    monkeypatch.setattr(Ruleset, "judge", breaks)
    ways = {
        name: way for name, way in (ROUTES | OTHERS).items() if name not in {"line of a batch", "in the background"}
    }
    async with running(tmp_path, provider) as gateway:
        told = {name: await way(gateway, "Good morning!") for name, way in ways.items()}
    assert told == dict.fromkeys(ways, (503, "guard_unavailable"))
    assert not provider.sent


async def test_a_rule_that_is_open_passes_and_tells_it(
    tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """(5) In the header, the metric and the log, on every route; one closed rule among them closes all."""
    monkeypatch.setattr(Ruleset, "judge", breaks)
    open_rules = [{**each, "on_error": "open"} for each in RULES]
    async with running(tmp_path, provider, guard={"rules": open_rules}, telemetry={"log_success_share": 1}) as gateway:
        with caplog.at_level(logging.INFO):
            for path, body in (
                ("/v1/chat/completions", chat_of("hi")),
                ("/v1/messages", {"model": "chat", "max_tokens": 9, "messages": messages_of("hi")}),
                ("/v1/embeddings", {"model": "vectors", "input": "x"}),
            ):
                reply = await posted(gateway, path, body)
                assert reply.status_code == 200
                assert reply.headers["x-weighbridge-guard"] == "cards=open:1, mails=open:1, project=open:1"

            async def is_counted() -> bool:
                async with httpx.AsyncClient() as ask:
                    shown = (await ask.get(f"{gateway.url}/metrics")).text
                return 'weighbridge_guard_findings_total{action="open",kind="pii",side="input"} 6.0' in shown

            await until(is_counted)
    assert CARD not in caplog.text
    fields = [
        record.checked_fields["guard"]
        for record in caplog.records
        if hasattr(record, "checked_fields") and record.checked_fields.get("guard")
    ]
    assert fields
    assert all(["input", "cards", "open", 1] in each for each in fields)
    closed = [*open_rules[:-1], RULES[-1]]
    (tmp_path / "closed").mkdir()
    async with running(tmp_path / "closed", provider, guard={"rules": closed}) as gateway:
        assert await ROUTES["/v1/chat/completions"](gateway, "hi") == (503, "guard_unavailable")


async def test_stored_rules_that_are_none_close_the_way(tmp_path: Path, provider: Provider) -> None:
    """(2, 51) What was written by another version is not dropped."""
    async with running(tmp_path, provider, guard={"rules": []}) as gateway:
        await gateway.accounts.set_guard("default", "team_a", '[{"name": "x", "kind": "gone", "input": "block"}]')
        await newly_known(gateway)
        assert await ROUTES["/v1/chat/completions"](gateway, "hi") == (503, "guard_unavailable")
    assert not provider.sent


async def newly_known(gateway: Running) -> None:
    """The next request looks its key up anew."""
    directory = gateway.live.directory
    directory._known.clear()


async def test_names_and_counts_are_all_that_is_told(
    tmp_path: Path, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    """(33) Header, metric, log and books have no value, and no place of one."""
    with caplog.at_level(logging.DEBUG):
        async with running(tmp_path, provider, telemetry={"log_success_share": 1}) as gateway:
            masked = await posted(
                gateway,
                "/v1/chat/completions",
                {**chat_of(f"{MAIL} and {MAIL} and b@example.com"), "metadata": {"u": MAIL}},
            )
            blocked = await posted(gateway, "/v1/chat/completions", chat_of(f"{CARD} {MAIL}"))
            rows = await gateway.rows()

            async def is_counted() -> bool:
                async with httpx.AsyncClient() as ask:
                    shown = (await ask.get(f"{gateway.url}/metrics")).text
                assert MAIL not in shown
                return 'weighbridge_guard_findings_total{action="mask",kind="email",side="input"} 5.0' in shown

            await until(is_counted)
    assert masked.headers["x-weighbridge-guard"] == "email=mask:4"
    assert blocked.headers["x-weighbridge-guard"] in {"card=block:1, email=mask:1", "email=mask:1, card=block:1"}
    for said in (masked.headers, blocked.headers, blocked.text, caplog.text, rows):
        assert CARD not in str(said)
        assert MAIL not in str(said)


async def test_what_nobody_looked_at_is_told(tmp_path: Path, provider: Provider) -> None:
    """(26)."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with running(tmp_path, provider) as gateway:
        body = {"model": "chat", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, picture]}]}
        reply = await posted(gateway, "/v1/chat/completions", body)
    assert (reply.status_code, reply.headers["x-weighbridge-guard"]) == (200, "image=unseen:1")


async def test_without_rules_nothing_is_looked_at(
    tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off is off: no header, and the body that came is the one that goes on."""
    monkeypatch.setattr(Guard, "judge", breaks)
    async with running(tmp_path, provider, guard={"rules": []}) as gateway:
        reply = await posted(gateway, "/v1/chat/completions", chat_of(f"{CARD} {MAIL}"))
    assert reply.status_code == 200
    assert "x-weighbridge-guard" not in reply.headers
    assert CARD in provider.all


async def test_an_answer_that_was_kept_for_a_key_is_given_again(tmp_path: Path, provider: Provider) -> None:
    """A masked request is the same request when it comes again; a blocked one keeps nothing."""
    headers = {"idempotency-key": "once"}
    async with running(tmp_path, provider) as gateway:
        first = await posted(gateway, "/v1/chat/completions", chat_of(MAIL), **headers)
        again = await posted(gateway, "/v1/chat/completions", chat_of(MAIL), **headers)
        blocked = await posted(gateway, "/v1/chat/completions", chat_of(CARD), **{"idempotency-key": "other"})
        served = await posted(gateway, "/v1/chat/completions", chat_of("hi"), **{"idempotency-key": "other"})
    assert (first.status_code, again.status_code, again.headers.get("idempotent-replayed")) == (200, 200, "true")
    assert (blocked.status_code, served.status_code) == (400, 200)
    assert len(provider.sent) == 2


async def test_limits_come_first(tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is looked at more often than limits let them ask."""
    looked = 0
    judge = Ruleset.judge

    def counted(*arguments: Any, **more: Any) -> Verdict:
        nonlocal looked
        looked += 1
        return judge(*arguments, **more)

    monkeypatch.setattr(Ruleset, "judge", counted)
    async with running(tmp_path, provider, limits={"team": {"requests_per_minute": 2}}) as gateway:
        told = [code_of(await posted(gateway, "/v1/chat/completions", chat_of(CARD)))[0] for _ in range(4)]
    assert (told, looked) == ([400, 400, 429, 429], 2)


async def test_kept_responses_have_what_their_caller_wrote(tmp_path: Path, provider: Provider) -> None:
    """(17) So the next turn makes the same masks of the same values, and its answer can be changed back."""
    async with running(tmp_path, provider) as gateway, client(gateway) as ask:
        first = await ask.responses.create(model="chat", input=f"write to {MAIL}")
        items = await ask.responses.input_items.list(first.id)
        await ask.responses.create(model="chat", input="go on", previous_response_id=first.id)
    assert MAIL in str(items.data[0])
    masks = [set(re.findall(r"\[EMAIL_[a-z2-7]+\]", each.decode())) for each in provider.sent]
    assert masks[0] == masks[1]
    assert len(masks[0]) == 1
    assert MAIL not in provider.all


async def test_a_reload_changes_the_rules(tmp_path: Path, provider: Provider) -> None:
    """(43) The next request is judged by them, what was remembered notwithstanding."""
    text = f"{'long ' * 100} {BIRD}"
    async with running(tmp_path, provider, guard={"rules": RULES[:1]}) as gateway:
        assert await ROUTES["/v1/chat/completions"](gateway, text) == (200, "")
        written = gateway.config_path.read_text()
        gateway.config_path.write_text(
            written.replace(
                "guard:\n  rules:\n",
                f"guard:\n  rules:\n  - {{name: project, kind: words, words: [{BIRD}], input: block}}\n",
            )
        )
        gateway.reload()
        assert await ROUTES["/v1/chat/completions"](gateway, text) == (400, "content_filter")


async def test_teams_and_organisations_tighten(tmp_path: Path, provider: Provider) -> None:
    """(37, 41) By key, team and organisation; another team knows nothing of it, and no header or field loosens."""
    own = [{"name": "fish", "kind": "words", "words": ["herring"], "input": "block"}]
    async with running(tmp_path, provider) as gateway:
        other = await team(gateway, "team_b")
        await gateway.accounts.set_guard("default", "team_a", json.dumps(own))
        await newly_known(gateway)
        texts = ("herring", CARD, "hi")
        loosening = {"x-weighbridge-guard": "off", "x-weighbridge-guard-bypass": "true"}
        ours = [
            code_of(await posted(gateway, "/v1/chat/completions", {**chat_of(each), "guardrails": []}, **loosening))[0]
            for each in texts
        ]
        theirs = [
            (await posted(gateway, "/v1/chat/completions", chat_of(each), authorization=f"Bearer {other}")).status_code
            for each in texts
        ]
        assert (ours, theirs) == ([400, 400, 200], [200, 400, 200])
        await gateway.accounts.set_guard("default", "", json.dumps(own))
        await newly_known(gateway)
        assert (
            await posted(gateway, "/v1/chat/completions", chat_of("herring"), authorization=f"Bearer {other}")
        ).status_code == 400


async def team(gateway: Running, team_id: str) -> str:
    """Make another team, and return a key of it."""
    store = AccountStore(gateway.engine)
    await store.create_team(team_id)
    from pydantic import SecretStr

    from gateway.configuration.environment import Environment
    from gateway.configuration.peppers import peppers
    from tests.running_gateway import PEPPER

    found = peppers(gateway.live.config, Environment(pepper=SecretStr(PEPPER)))
    return (await store.create_key(team_id, "tests", found[0])).plaintext


async def test_a_socket_goes_on_after_a_refusal(tmp_path: Path, provider: Provider) -> None:
    """(30) The turn is refused, and the next one on the same connection is served."""
    async with running(tmp_path, provider) as gateway, socket_of(gateway) as socket:
        seen = [(await socket.events(model="chat", input=text))[-1]["type"] for text in (CARD, "hi")]
    assert seen == ["error", "response.completed"]


async def test_a_native_request_is_changed_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """(19, 23, 25, 40) Anthropic's own dialect to Anthropic: results of tools in both forms, arguments, files, thoughts without a signature;
    marks of caches and signed thoughts are as they came.
    """
    monkeypatch.setenv("MADE_UP_ANTHROPIC_KEY", "made-up")
    mark = {"type": "ephemeral"}
    thought = {"type": "thinking", "thinking": "It is heavy.", "signature": "c2lnbmVk"}
    turns: Any = [
        {"role": "user", "content": [{"type": "text", "text": f"Write to {MAIL}.", "cache_control": mark}]},
        {
            "role": "assistant",
            "content": [thought, {"type": "tool_use", "id": "toolu_1", "name": "weigh", "input": {"to": [MAIL]}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": f"sent to {MAIL}", "cache_control": mark}
            ],
        },
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_2", "name": "weigh", "input": {}}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [{"type": "text", "text": f"again to {MAIL}"}],
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": f"file of {MAIL}"},
                    "title": MAIL,
                },
            ],
        },
    ]
    asked: Any = {
        "model": "claude-house",
        "max_tokens": 4_000,
        "system": [{"type": "text", "text": f"You write for {MAIL}.", "cache_control": mark}],
        "tools": [
            {
                "name": "weigh",
                "description": f"such as {MAIL}",
                "input_schema": {"type": "object", "properties": {}},
                "cache_control": mark,
            }
        ],
        "messages": turns,
    }
    async with anthropics(anthropic_whole) as served:
        deployment = {
            "kind": "litellm",
            "upstream_model": "anthropic/claude-sonnet-4-5",
            "base_url": served.base_url,
            "api_key": "env:MADE_UP_ANTHROPIC_KEY",
        }
        async with (
            running_gateway(tmp_path, [model("claude-house", [deployment])], guard={"rules": RULES}) as gateway,
            anthropic.AsyncAnthropic(api_key=gateway.key, base_url=gateway.url, max_retries=0) as caller,
        ):
            await caller.messages.create(**asked)
    (sent,) = served.bodies
    assert MAIL not in json.dumps(sent)
    assert len(re.findall(r"\[EMAIL_[a-z2-7]+\]", json.dumps(sent))) == 8
    assert len(set(re.findall(r"\[EMAIL_[a-z2-7]+\]", json.dumps(sent)))) == 1
    assert sent["messages"][1]["content"][0] == thought
    assert [
        each["cache_control"]
        for each in (
            sent["system"][0],
            sent["tools"][0],
            sent["messages"][0]["content"][0],
            sent["messages"][2]["content"][0],
        )
    ] == [mark] * 4


async def test_lines_for_a_provider_are_judged_before_they_are_handed_over(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(27) The refused line alone is refused, the masked one goes masked, and both have their answers."""
    bodies: list[str] = []

    def written(*arguments: Any) -> bytes:
        body = upstream_body(*arguments)
        bodies.append(body.decode())
        return body

    monkeypatch.setattr("proxy.provider_batch_lines.upstream_body", written)
    monkeypatch.setattr("providers.http_client.upstream_body", written, raising=False)
    sections: dict[str, Any] = {
        "guard": {"rules": RULES},
        "batch": {**FAST, "providers": True, "provider_poll_s": 0.05},
    }
    bought = model(
        "bought",
        [upstream.deployment("ok", batch_api="openai")],
        prices={"input": "2", "output": "10", "batch_discount": "0.5", "version": "test"},
    )
    async with running_gateway(tmp_path, [bought], **sections) as gateway, client(gateway) as caller:
        lines = [
            line("good", "bought"),
            line("refused", "bought", messages=messages_of(CARD)),
            line("masked", "bought", messages=messages_of(MAIL)),
        ]
        batch = await ended(caller, await submit(caller, lines, completion_window="background"))
        answers = {
            each["custom_id"]: each["response"]
            for name in (batch.output_file_id, batch.error_file_id)
            for each in await results(caller, name)
        }
    assert {name: each["status_code"] for name, each in answers.items()} == {"good": 200, "masked": 200, "refused": 400}
    assert answers["refused"]["body"]["error"]["code"] == "content_filter"
    assert any("[EMAIL_" in each for each in bodies)
    assert not any(MAIL in each or CARD in each for each in bodies)


async def test_who_a_request_is_for_is_booked_as_it_was_named(tmp_path: Path, provider: Provider) -> None:
    """Another word is sent in its place, and the books and limits of that end user hold."""
    async with running(tmp_path, provider) as gateway:
        reply = await posted(gateway, "/v1/chat/completions", {**chat_of("hi"), "user": MAIL})
        (row,) = await gateway.rows("entry = 'settle'")
    assert reply.status_code == 200
    assert MAIL not in provider.all
    assert row["end_user"] == booked(MAIL)
