"""A new version gets a share of conversations, fails there, and is rolled back by the rule: a running gateway."""

import contextlib
import html
import itertools
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from accounts.audit.log import Scope
from gateway.wiring import rollouts
from tests.fleet import OWN, callers, pooled_model
from tests.processes import until
from tests.running_gateway import Running, running_gateway
from tests.signed_in import Browser, signed_in

REFUSED: Final = (
    (409, "POST", "versions", {"model": OWN, "version": "v1", "weights": "/elsewhere"}),
    (404, "POST", "versions", {"model": "nobody's", "version": "v1", "weights": "/x"}),
    (400, "POST", "versions", {"model": OWN, "version": "v4", "weights": "/x", "digest": "md5"}),
    (400, "POST", "versions", {"model": OWN, "version": "v4"}),
    (404, "PUT", "rollouts/canary", {"model": OWN, "version": "v9", "percent": 1}),
    (409, "PUT", "rollouts/canary", {"model": OWN, "version": "v1", "percent": 100}),
    (409, "PUT", "rollouts/canary", {"model": OWN, "version": "v1", "percent": 1}),
    (409, "POST", "rollouts/promote", {"model": OWN, "version": "v1"}),
    (404, "POST", "rollouts/promote", {"model": "nobody's"}),
)
_PAGE = "/dashboard/operations/rollouts/own"


@contextlib.asynccontextmanager
async def engine(version: str, *, fails: bool) -> AsyncIterator[str]:
    """A healthy engine whose answers are its version's name, or errors."""

    async def chat(_request: web.Request) -> web.Response:
        if fails:
            return web.json_response({"error": {"message": "the weights are broken"}}, status=500)
        choice = {"index": 0, "message": {"role": "assistant", "content": version}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        return web.json_response({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})

    async def fine(_request: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")

    app = web.Application()
    app.router.add_get("/health", fine)
    app.router.add_get("/metrics", fine)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def pool(old: str, new: str) -> dict[str, Any]:
    """The old version says itself what it is, the new one is known by its name."""
    return {
        "name": "own",
        "targets": [OWN],
        "replicas": [{"name": "old", "url": old, "version": "v1"}, {"name": "llama-v2-x7k", "url": new}],
        "versions": [{"version": "v2", "replicas": "llama-v2-*"}],
        "watch": {"every_s": 0.2, "timeout_s": 5.0},
    }


async def added_on_the_page(browser: Browser, gateway: Running) -> None:
    """v2, once a wrong digest is mended: what was typed stays, and the audit log has who did it."""
    typed = {"model": OWN, "name": "v2", "weights": "/models/v2", "arguments": "--max-model-len=16384\n--a\n"}
    for fields, told in (
        ({"digest": "md5"}, "A digest is sha256:"),
        ({"arguments": "--api-key=x"}, "An argument looks like a secret"),
        ({"name": "v1"}, "has a version v1"),
        ({"weights": ""}, "This is needed."),
        ({"weights": "nonsense"}, "Say where the weights are"),
        ({"model": "nobody's"}, "Choose one of"),
    ):
        refused = await browser.post(f"{_PAGE}/versions", typed | fields)
        assert (refused.status, html.escape(told) in refused.text) == (422, True), told
        assert 'value="/models/v2"' in refused.text or "weights" in fields
    made = await browser.post(f"{_PAGE}/versions", typed)
    assert (made.status, made.location) == (303, _PAGE)
    entry = (await gateway.parts.identity.audit.page(Scope(organisation_id=None)))[0]
    assert (entry.action, entry.actor_name, entry.object_id) == ("model_version.added", "Ann", f"{OWN}/v2")
    assert '["--max-model-len=16384","--a"]' in entry.after.replace(", ", ",")


async def served(gateway: Running, where: str) -> set[str]:
    """The versions that served, by the ledger."""
    return {row["version"] for row in await gateway.rows(f"entry IN ('settle', 'void') AND {where}")}


async def test_a_faulty_version_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers notice nothing, as what fails there is answered by the other version; the rule ends the trial, and the page
    and the audit log say why.
    """
    monkeypatch.setattr(rollouts, "EVERY_S", 0.2)
    async with (
        engine("v1", fails=False) as old,
        engine("v2", fails=True) as new,
        running_gateway(tmp_path, [pooled_model()], selfhosted={"pools": [pool(old, new)]}) as gateway,
        callers(gateway) as found,
        signed_in(gateway, role="operator") as browser,
    ):
        await found.until_states(**{"old": "ready", "llama-v2-x7k": "ready"})
        assert {each["name"]: each["version"] for each in (await found.pool())["replicas"]} == {
            "llama-v2-x7k": "v2",
            "old": "v1",
        }
        await found.order("POST", "/fleet/versions", model=OWN, version="v1", weights="/models/v1")
        await added_on_the_page(browser, gateway)
        started = await found.order("PUT", "/fleet/rollouts/canary", model=OWN, version="v2", percent=20)
        assert (started["state"], started["percent"], started["pool"]) == ("canary", 20.0, "own")
        for status, method, path, body in REFUSED:
            headers = {"authorization": f"Bearer {found.admin}"}
            url = f"{gateway.base_url}/fleet/{path}"
            async with found.session.request(method, url, headers=headers, json=body) as reply:
                assert (reply.status, (await reply.json())["error"]["code"] is not None) == (status, status != 400)
        told = await found.order("GET", f"/fleet/versions?model={OWN}")
        assert [each["version"] for each in told["data"]] == ["v2", "v1"]
        page = (await browser.get(_PAGE)).text
        assert "v2 gets 20.0 % of conversations" in page
        assert "Roll back v2" in page
        assert 'name="percent" type="text" value="20"' in page

        numbers = itertools.count()

        async def is_rolled_back() -> bool:
            replies = [await found.ask([{"role": "user", "content": f"Story {next(numbers)}"}]) for _ in range(5)]
            assert {(reply.status, reply.text) for reply in replies} == {(200, "v1")}
            (told,) = (await found.order("GET", "/fleet/rollouts"))["data"]
            return bool(told["state"] == "rolled_back")

        await until(is_rolled_back)
        assert await served(gateway, "version <> ''") == {"v1", "v2"}
        page = (await browser.get(_PAGE)).text
        assert "v2 gets nothing any more" in page
        assert "attempts failed" in page
        entry = (await gateway.parts.identity.audit.page(Scope(organisation_id=None)))[0]
        assert (entry.action, entry.actor_name, entry.object_id) == ("rollout.rolled_back", "The rule", OWN)
        refused = await browser.post(f"{_PAGE}/rollback")
        assert refused.status == 409
        again = await browser.post(f"{_PAGE}/canary", {"version": "v2", "percent": "1", "errors": "on"})
        assert (again.status, again.location) == (303, _PAGE)
        assert (await browser.post(f"{_PAGE}/canary", {"version": "v3", "percent": "1"})).status == 422
        assert (await browser.post(f"{_PAGE}/promote", {"reason": "mended"})).status == 303
        # No replica of it takes work: it failed all.
        assert re.search("v2 (is to get|gets) everything", (await browser.get(_PAGE)).text)
        assert f">{OWN}<" in (await browser.get("/dashboard/operations/rollouts")).text
