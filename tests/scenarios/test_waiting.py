"""How long a caller is waited for, and how a deployment that hangs is hidden from it: a whole gateway before scripts."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.conftest import Upstream

FIRST_TOKEN_S = 2.0
QUICK: dict[str, Any] = {"providers": {"timeouts": {"first_token_interactive_s": FIRST_TOKEN_S}}}


async def ask(
    gateway: Running, name: str, *, stream: bool = False, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    body = {"model": name, "stream": stream, "messages": [{"role": "user", "content": "Say hello."}]}
    sent = {"authorization": f"Bearer {gateway.key}", **(headers or {})}
    async with (
        aiohttp.ClientSession(headers=sent) as session,
        session.post(f"{gateway.base_url}/chat/completions", json=body) as reply,
    ):
        return reply.status, await reply.text()


@pytest.mark.parametrize("stream", [True, False])
async def test_who_else_could_not_answer_is_waited_for(tmp_path: Path, upstream: Upstream, *, stream: bool) -> None:
    """A first token that is later than the limit is given where there is no other deployment and no other candidate."""
    slow = model("slow", [upstream.deployment("slow-first-token-500ms")])
    async with running_gateway(tmp_path, [slow], providers={"timeouts": {"first_token_interactive_s": 0.2}}) as gateway:
        status, text = await ask(gateway, "slow", stream=stream)
    assert (status, "word" in text or "content" in text) == (200, True)
    assert len(upstream.arrived()) == 1


async def test_a_frozen_deployment_is_hidden(tmp_path: Path, upstream: Upstream) -> None:
    """One of three says nothing: every stream is answered, by a sibling that answers others meanwhile."""
    deployments = [upstream.deployment(script, name) for name, script in (("a", "hang"), ("b", "ok"), ("c", "ok"))]
    async with running_gateway(tmp_path, [model("shared", deployments)], **QUICK) as gateway:
        replies = await asyncio.gather(*(ask(gateway, "shared", stream=True) for _ in range(60)))
    assert {status for status, _ in replies} == {200}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_frozen_target_falls_back_to_the_next(tmp_path: Path, upstream: Upstream, *, stream: bool) -> None:
    """Half of a caller's own time at most is spent on it."""
    models = [model("frozen", [upstream.deployment("hang")]), model("spare", [upstream.deployment("ok")])]
    policy = {"fallbacks": {"frozen": ["spare"]}}
    sections: dict[str, Any] = {"providers": {"timeouts": {"first_token_interactive_s": 60}}, "policy": policy}
    async with running_gateway(tmp_path, models, **sections) as gateway:
        status, _ = await ask(gateway, "frozen", stream=stream, headers={"x-request-timeout-ms": "4000"})
    assert status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_later_than_usual_has_a_second_attempt_beside_it(
    tmp_path: Path, upstream: Upstream, *, stream: bool
) -> None:
    """A setting of the file: the sibling answers, the call that hung is cancelled, and both are in the ledger."""
    deployments = [
        upstream.deployment("hang", "frozen") | {"weight": 1000},
        upstream.deployment("ok", "well") | {"weight": 1e-9},
    ]
    hedged = model("shared", deployments, hedging=["interactive"])
    async with running_gateway(tmp_path, [hedged]) as gateway:
        for _ in range(20):
            gateway.live.gate.latency.observe("shared", 0.05, None)
            gateway.live.gate.latency.observe_whole("shared", 0.05)
        status, _ = await ask(gateway, "shared", stream=stream)
        rows = await gateway.rows("entry != 'reserve'")
    assert status == 200
    assert [(row["deployment_id"], row["reason"], row["served"]) for row in rows] == [
        ("shared/frozen", "named", False),
        ("shared/well", "hedge", True),
    ]
    assert "hedge_lost" in rows[0]["flags"]


@pytest.mark.parametrize(
    ("answer_s", "cases"),
    [
        (
            60,
            [
                ({"x-request-timeout-ms": "300"}, "300 ms of `x-request-timeout-ms`"),
                ({"x-stainless-read-timeout": "0.3"}, "0.3 s of `x-stainless-read-timeout`"),
                ({"x-stainless-timeout": "0.3"}, "0.3 s of `x-stainless-timeout`"),
            ],
        ),
        (0.3, [({"x-stainless-read-timeout": "600"}, "0.3 s of `deadlines.interactive.answer_s`")]),
    ],
)
async def test_each_504_says_whose_limit_it_was(
    tmp_path: Path, upstream: Upstream, answer_s: float, cases: list[tuple[dict[str, str], str]]
) -> None:
    """Its name, its value, and what to set for more; of a stream and of a whole answer."""
    deadlines = {"interactive": {"first_token_s": None, "answer_s": answer_s}}
    silent = model("silent", [upstream.deployment("hang")])
    asked = [(headers, told, stream) for headers, told in cases for stream in (True, False)]
    async with running_gateway(tmp_path, [silent], deadlines=deadlines) as gateway:
        replies = await asyncio.gather(
            *(ask(gateway, "silent", stream=stream, headers=headers) for headers, _, stream in asked)
        )
    for (headers, told, stream), (status, text) in zip(asked, replies, strict=True):
        assert status == 504, (headers, stream)
        assert told in text, (headers, stream)
        assert "x-request-timeout-ms" in text or "more time" in text, (headers, stream)
