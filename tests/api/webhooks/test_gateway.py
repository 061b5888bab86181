"""A whole gateway sends what is put into its outbox, and refuses to start with a secret that cannot sign."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

from api.webhooks.outbox import Outbox
from api.webhooks.signature import BadSecret
from gateway.configuration.environment import Environment
from gateway.configuration.settings import load
from gateway.process.serve import serve
from tests.api.webhooks.receiver import SECRET, receiving
from tests.running_gateway import model, running_gateway

MODELS = [model("only", [{"name": "a", "kind": "scripted", "upstream_model": "ok"}])]


def section(url: str) -> dict[str, Any]:
    return {"destinations": [{"name": "ops", "url": url, "secret": "env:WEBHOOK_TEST_SECRET"}]}


async def test_a_gateway_delivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a moment, signed with the configured secret, and counted."""
    monkeypatch.setenv("WEBHOOK_TEST_SECRET", SECRET)
    async with receiving() as receiver:
        came = asyncio.Event()

        async def tell() -> None:
            came.set()

        receiver.taken = tell
        async with running_gateway(tmp_path, MODELS, webhooks=section(receiver.url)) as gateway:
            outbox = Outbox(gateway.engine)
            await outbox.put("budget/b_1/2026-11/80", "ops", "budget.threshold_reached", {"percent": 80})
            await asyncio.wait_for(came.wait(), 20)
            async with asyncio.timeout(20):
                while not (await outbox.state("ops")).delivered:  # noqa: ASYNC110 - another process's row tells nobody
                    await asyncio.sleep(0.01)
            counted = gateway.parts.metrics.requests.render()[0].decode()
    (got,) = receiver.received
    assert OpenAI(api_key="unused").webhooks.unwrap(got.body, got.headers, secret=SECRET).id == got.message_id
    assert 'weighbridge_webhooks_total{result="delivered"} 1.0' in counted


async def test_a_gateway_with_a_bad_secret_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found when it starts, not when the first warning is due."""
    monkeypatch.setenv("WEBHOOK_TEST_SECRET", "not like this")
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", "a pepper for tests only, 32 bytes and more")
    async with receiving() as receiver:
        file = tmp_path / "gateway.yaml"
        environment = Environment(data_dir=tmp_path)
        file.write_text(yaml.safe_dump({"providers": {"models": MODELS}, "webhooks": section(receiver.url)}))
        hangup = signal.getsignal(signal.SIGHUP)
        try:
            with pytest.raises(BadSecret, match="destination `ops`"):
                serve(load(file, environment), environment, file)
        finally:
            signal.signal(signal.SIGHUP, hangup)
