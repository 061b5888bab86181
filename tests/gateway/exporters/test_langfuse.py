"""The exporter to Langfuse, against a server that answers as its ingestion API does."""

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from gateway.exporters.langfuse import Langfuse, LangfuseRefused, Project
from tests.providers.wires import Provider, provider
from weighbridge.plugins import Outcome
from weighbridge.plugins.testing import sample_outcomes, try_out

_ANSWERED = replace(sample_outcomes(1)[0], is_sample=False, cached_input_tokens=4)


async def takes_all(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    told = {"successes": [{"id": each["id"], "status": 201} for each in body["batch"]], "errors": []}
    return web.json_response(told, status=207)


async def refuses_all(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Faults of input are no status of their own."""
    told = {"successes": [], "errors": [{"id": each["id"], "status": 400} for each in body["batch"]]}
    return web.json_response(told, status=207)


async def unknown_keys(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"message": "Invalid credentials"}, status=401)


@pytest.fixture
async def langfuse() -> AsyncIterator[Provider]:
    async with provider(takes_all) as served:
        yield served


def made(served: Provider) -> Langfuse:
    return Langfuse(Project(public_key="pk", secret_key="sk", host=f"{served.base_url}/"))


async def test_a_request_is_a_trace_and_a_generation(langfuse: Provider) -> None:
    """With tokens and dollars, under ids that follow from the request."""
    exporter = made(langfuse)
    await exporter.finished([_ANSWERED])
    await exporter.finished([_ANSWERED])
    await exporter.aclose()
    trace, generation = langfuse.bodies[0]["batch"]
    assert langfuse.bodies[0] == langfuse.bodies[1]
    assert langfuse.requests[0].path == "/api/public/ingestion"
    assert langfuse.requests[0].headers["authorization"] == f"Basic {base64.b64encode(b'pk:sk').decode()}"
    assert (trace["type"], trace["body"]["id"], trace["body"]["input"]) == ("trace-create", "sample-0", None)
    assert generation["body"]["traceId"] == "sample-0"
    assert generation["body"]["usageDetails"] == {"input": 8, "cache_read_input_tokens": 4, "output": 30}
    assert generation["body"]["costDetails"] == {"total": 0.00002}
    assert generation["body"]["completionStartTime"] == "2025-11-27T23:59:59.400000+00:00"


async def test_a_refused_request_is_a_trace_alone_and_an_unknown_cost_is_none(langfuse: Provider) -> None:
    """No model answered; and unknown is not nothing."""
    exporter = made(langfuse)
    refused: Outcome = replace(sample_outcomes(2)[1], is_sample=False)
    await exporter.finished([refused, replace(_ANSWERED, cost_nanousd=None)])
    await exporter.aclose()
    assert [each["type"] for each in langfuse.bodies[0]["batch"]] == [
        "trace-create",
        "trace-create",
        "generation-create",
    ]
    assert langfuse.bodies[0]["batch"][2]["body"]["costDetails"] == {}


async def test_the_kit_finds_nothing_and_made_up_requests_are_not_kept(langfuse: Provider) -> None:
    """`config check` asks whether the keys work, and leaves nothing behind."""
    exporter = made(langfuse)
    await try_out(exporter, "exporter")
    await exporter.aclose()
    assert {len(each["batch"]) for each in langfuse.bodies} == {0}


@pytest.mark.parametrize("answer", [refuses_all, unknown_keys])
async def test_a_batch_that_is_not_taken_is_a_failure(answer: Any) -> None:
    """Though the status says 207."""
    async with provider(answer) as served:
        exporter = made(served)
        with pytest.raises(LangfuseRefused):
            await exporter.finished([_ANSWERED])
        await exporter.aclose()
