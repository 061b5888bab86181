"""Parameters that a target refuses by their names are left out from then on, and nobody can make others lose one."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from api.operations.snapshot import operations_snapshot
from tests.processes import until
from tests.running_gateway import CHEAP_PRICES, DEAR_PRICES, Running, model, running_gateway
from tests.scenarios.test_quirks import CLAUDES_ANSWER
from tests.scenarios.test_refusals import ANSWER, answering

Body = dict[str, Any]
Refuse = Callable[[Body], tuple[int, Any] | None]
USER: Final = [{"role": "user", "content": "What is the capital of France?"}]


def openais(name: str) -> Refuse:
    """OpenAI's words for a model that never takes it."""

    def refuse(body: Body) -> tuple[int, Any] | None:
        if name not in body:
            return None
        said = f"Unsupported parameter: '{name}' is not supported with this model."
        return 400, {
            "error": {"message": said, "type": "invalid_request_error", "param": name, "code": "unsupported_parameter"}
        }

    return refuse


def mistrals(body: Body) -> tuple[int, Any] | None:
    """Everything that it does not know at once, with 422."""
    odd = [name for name in body if name not in {"model", "messages", "max_tokens", "stream", "temperature"}]
    detail = [
        {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"} for name in odd
    ]
    return (422, {"detail": detail}) if odd else None


@contextlib.asynccontextmanager
async def refusing(refuse: Refuse) -> AsyncIterator[tuple[dict[str, Any], list[Body]]]:
    """A deployment that answers what it does not refuse; yields its configuration and the bodies that it got."""
    got: list[Body] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        got.append(body)
        refused = refuse(body)
        return web.json_response(ANSWER) if refused is None else web.json_response(refused[1], status=refused[0])

    async with answering(answer) as here:
        yield here, got


async def ask(gateway: Running, name: str, **fields: Any) -> tuple[int, Body, str | None]:
    """Status, body, and the parameters that the caller is told are left out."""
    headers = {"authorization": f"Bearer {gateway.key}"}
    body = {"model": name, "messages": USER, **fields}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.base_url}/chat/completions", headers=headers, json=body) as reply,
    ):
        return reply.status, await reply.json(), reply.headers.get("x-weighbridge-dropped")


async def test_what_was_refused_once_is_not_sent_again(tmp_path: Path) -> None:
    """The request that finds it out is answered all the same, and each caller is told; Operations shows it."""
    async with (
        refusing(openais("seed")) as (here, got),
        running_gateway(tmp_path, [model("new", [here])]) as gateway,
    ):
        for _ in range(3):
            status, _, dropped = await ask(gateway, "new", seed=7, temperature=0.2)
            assert (status, dropped) == (200, "seed")
        assert [("seed" in body, body["temperature"]) for body in got] == [(True, 0.2), *[(False, 0.2)] * 3]
        assert (await ask(gateway, "new", temperature=0.2))[::2] == (200, None)
        await until(lambda: gateway.parts.refused_parameters() == {"new": {"seed"}})
        told = await operations_snapshot(gateway.parts)
        assert [each["refused_parameters"] for each in told["targets"]] == [["seed"]]


async def test_several_that_are_refused_at_once_are_found_one_by_one(tmp_path: Path) -> None:
    """With 422 and a list, as FastAPI writes it; notes for OpenAI's records are told, too."""
    async with refusing(mistrals) as (here, got), running_gateway(tmp_path, [model("new", [here])]) as gateway:
        for _ in range(2):
            status, _, dropped = await ask(gateway, "new", seed=7, user="me", store=False)
            assert (status, dropped) == (200, "seed, store, user")
        assert len(got) == 5


async def test_the_longest_answer_goes_by_its_other_name(tmp_path: Path) -> None:
    """A bound is never left out."""
    async with (
        refusing(openais("max_tokens")) as (here, got),
        running_gateway(tmp_path, [model("new", [here])]) as gateway,
    ):
        for _ in range(2):
            status, _, dropped = await ask(gateway, "new", max_tokens=9)
            assert (status, dropped) == (200, None)
        assert [(body.get("max_tokens"), body.get("max_completion_tokens")) for body in got] == [
            (9, None),
            (None, 9),
            (None, 9),
        ]


async def test_what_decides_the_answer_is_asked_elsewhere(tmp_path: Path) -> None:
    """Who names the target reads the provider's words, and later that it cannot take it; `auto` goes on to another one."""
    async with (
        refusing(openais("stop")) as (here, got),
        refusing(lambda _body: None) as (other, answered),
    ):
        models = [model("cheap", [here], prices=CHEAP_PRICES), model("dear", [other], prices=DEAR_PRICES)]
        async with running_gateway(tmp_path, models) as gateway:
            status, body, _ = await ask(gateway, "cheap", stop=["."])
            assert (status, body["error"]["code"]) == (400, "unsupported_parameter")
            status, body, _ = await ask(gateway, "cheap", stop=["."])
            assert status == 400
            assert "cannot take stop" in body["error"]["message"]
            for _ in range(2):
                assert (await ask(gateway, "auto", stop=["."]))[0] == 200
            assert len(got) == 1
            assert [body["stop"] for body in answered] == [["."]] * 2
            assert (await ask(gateway, "cheap"))[0] == 200


async def test_a_refusal_beside_an_effort_takes_nothing_from_others(tmp_path: Path) -> None:
    """Models that reason when asked to take no temperature then: the request is made without it, and nothing is remembered."""

    def refuse(body: Body) -> tuple[int, Any] | None:
        return openais("temperature")(body) if "reasoning_effort" in body else None

    async with refusing(refuse) as (here, got), running_gateway(tmp_path, [model("new", [here])]) as gateway:
        assert (await ask(gateway, "new", temperature=0.2, reasoning_effort="high"))[::2] == (200, "temperature")
        assert (await ask(gateway, "new", temperature=0.2))[::2] == (200, None)
        assert [body.get("temperature") for body in got] == [0.2, None, 0.2]


async def test_a_refusal_without_an_effort_leaves_none_alone(tmp_path: Path) -> None:
    """A model of an unknown name that reasons unless it is asked not to: its temperature goes to it at `none` all the same."""

    def refuse(body: Body) -> tuple[int, Any] | None:
        return None if body.get("reasoning_effort") == "none" else openais("temperature")(body)

    async with refusing(refuse) as (here, got), running_gateway(tmp_path, [model("new", [here])]) as gateway:
        for _ in range(2):
            assert (await ask(gateway, "new", temperature=0.2))[::2] == (200, "temperature")
            assert (await ask(gateway, "new", temperature=0.2, reasoning_effort="none"))[::2] == (200, None)
        assert [body.get("temperature") for body in got] == [0.2, None, 0.2, None, 0.2]


@pytest.mark.parametrize(
    "said",
    [
        "Unsupported value: 'temperature' does not support 9 with this model. Supported values are: 0 to 2.",
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 9 instead.",
        "temperature: Input should be less than or equal to 2",
        "Something about temperature is not supported with this model",
        "frobnicate: Extra inputs are not permitted",
    ],
)
async def test_a_refused_value_is_its_callers_matter(tmp_path: Path, said: str) -> None:
    """Only names are learnt, and only known ones."""

    def refuse(body: Body) -> tuple[int, Any] | None:
        if body.get("temperature") == 9:
            return 400, {"error": {"message": said, "type": "invalid_request_error", "param": "temperature"}}
        return None

    async with refusing(refuse) as (here, got), running_gateway(tmp_path, [model("new", [here])]) as gateway:
        status, body, _ = await ask(gateway, "new", temperature=9, frobnicate=1)
        assert (status, body["error"]["message"]) == (400, said)
        assert (await ask(gateway, "new", temperature=1.5))[::2] == (200, None)
        assert len(got) == 2


@pytest.mark.parametrize(
    "name",
    [
        "Unsupported parameter: 'temperature' is not supported with this model.",
        "temperature is not supported with this model",
        "Unrecognized request argument supplied: temperature",
        "BadRequestError: `temperature` is deprecated for this model.",
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_nobody_can_make_others_lose_a_parameter(tmp_path: Path, name: str, path: str) -> None:
    """A provider that repeats the name of a caller's field before its own words has refused nothing else."""

    def refuse(body: Body) -> tuple[int, Any] | None:
        odd = next((each for each in body if " " in each), None)
        if odd is None:
            return None
        return 400, {"error": {"message": f"{odd}: Extra inputs are not permitted", "type": "invalid_request_error"}}

    async with refusing(refuse) as (here, got), running_gateway(tmp_path, [model("new", [here])]) as gateway:
        headers = {"authorization": f"Bearer {gateway.key}", "anthropic-version": "2023-06-01"}
        body = {"model": "new", "max_tokens": 9, "messages": USER, "temperature": 0.2, name: 1}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{gateway.base_url}/{path}", headers=headers, json=body) as reply,
        ):
            await reply.read()
        assert (await ask(gateway, "new", temperature=0.2))[::2] == (200, None)
        assert got[-1]["temperature"] == 0.2


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_a_claude_is_asked_again_in_its_own_dialect(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came as messages, too, goes without it and is otherwise as it was written."""
    monkeypatch.setenv("MADE_UP_ANTHROPIC_KEY", "sk-ant-made-up-0123456789")
    got: list[Body] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        got.append(body)
        if "temperature" in body:
            error = {"type": "invalid_request_error", "message": "`temperature` is deprecated for this model."}
            return web.json_response({"type": "error", "error": error}, status=400)
        return web.json_response(CLAUDES_ANSWER)

    async with answering(answer, "/v1/messages") as here:
        claude = here | {
            "kind": "litellm",
            "upstream_model": "anthropic/claude-sonnet-4-5",
            "api_key": "env:MADE_UP_ANTHROPIC_KEY",
        }
        async with running_gateway(tmp_path, [model("new", [claude])]) as gateway:
            headers = {"authorization": f"Bearer {gateway.key}", "anthropic-version": "2023-06-01"}
            body = {"model": "new", "max_tokens": 9, "messages": USER, "temperature": 0.2}
            for _ in range(2):
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(f"{gateway.base_url}/{path}", headers=headers, json=body) as reply,
                ):
                    assert (reply.status, reply.headers["x-weighbridge-dropped"]) == (200, "temperature")
            assert ["temperature" in each for each in got] == [True, False, False]


async def test_what_the_gateway_itself_asks_for_is_left_out_too(tmp_path: Path) -> None:
    """A host that knows no `stream_options` streams without telling its usage; the caller sent none and is told of none."""
    got: list[Body] = []
    chunk = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}'

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        got.append(body)
        refused = openais("stream_options")(body)
        if refused is not None:
            return web.json_response(refused[1], status=refused[0])
        events = [chunk % ('{"content":"Paris"}', "null"), chunk % ("{}", '"stop"'), "[DONE]"]
        return web.Response(
            body="".join(f"data: {each}\n\n" for each in events), headers={"content-type": "text/event-stream"}
        )

    async with answering(answer) as here, running_gateway(tmp_path, [model("new", [here])]) as gateway:
        for _ in range(2):
            headers = {"authorization": f"Bearer {gateway.key}"}
            body = {"model": "new", "messages": USER, "stream": True}
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{gateway.base_url}/chat/completions", headers=headers, json=body) as reply,
            ):
                assert "Paris" in await reply.text()
                assert "x-weighbridge-dropped" not in reply.headers
        assert ["stream_options" in each for each in got] == [True, False, False]
