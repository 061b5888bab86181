"""Transcripts behind a guard in each of their forms: JSON, events, plain text, subtitles, words with their times."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.providers.wires import LITELLM_WARNINGS
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.test_guard_services import service
from tests.scenarios.test_guarded_answers import CARD, MAIL

pytestmark = LITELLM_WARNINGS
RULES: Final[list[dict[str, Any]]] = [
    {"name": "cards", "kind": "pii", "entities": ["card"], "output": "block"},
    {"name": "mails", "kind": "pii", "entities": ["email"], "output": "mask"},
]
FORMS: Final = ("json", "text", "srt", "vtt", "verbose_json", "stream")


class Ear:
    """Writes down what it was told to, as its caller wants it."""

    def __init__(self) -> None:
        self.text = ""
        self.url = ""

    async def hear(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        if form.get("stream") == "true":
            reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await reply.prepare(request)
            for event in self.events():
                written = json.dumps(event).encode()
                await reply.write(b"data: " + written[:9])
                await reply.write(written[9:] + b"\n\n")
            return reply
        wanted = form.get("response_format") or "json"
        if wanted in {"text", "srt", "vtt"}:
            return web.Response(text=self.text, content_type="text/plain")
        told: dict[str, Any] = {"text": self.text, "usage": {"type": "duration", "seconds": 2}}
        if wanted == "verbose_json":
            told["words"] = [{"word": each, "start": 0, "end": 1} for each in self.text.split()]
            told["segments"] = [{"id": 0, "text": self.text, "tokens": [50364, 4111]}]
        return web.json_response(told)

    def events(self) -> Iterator[dict[str, Any]]:
        for at in range(0, len(self.text), 3):
            piece = self.text[at : at + 3]
            yield {"type": "transcript.text.delta", "delta": piece, "logprobs": [{"token": piece}]}
        yield {"type": "transcript.text.done", "text": self.text, "usage": {"input_tokens": 3, "output_tokens": 9}}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADE_UP_KEY", "made-up")


@pytest.fixture
async def ear() -> AsyncIterator[Ear]:
    found = Ear()
    app = web.Application()
    app.router.add_post("/{path:.*}", found.hear)
    async with TestServer(app) as server:
        found.url = str(server.make_url("/v1"))
        yield found


def running(tmp_path: Path, ear: Ear, rules: list[dict[str, Any]]) -> Any:
    there = {"kind": "openai", "base_url": ear.url, "upstream_model": "m"}
    return running_gateway(tmp_path, [model("ear", [there], capabilities=["transcription"])], guard={"rules": rules})


async def heard(gateway: Running, form: str) -> httpx.Response:
    fields = {"model": "ear", **({"stream": "true"} if form == "stream" else {"response_format": form})}
    async with httpx.AsyncClient(timeout=60) as ask:
        return await ask.post(
            f"{gateway.url}/v1/audio/transcriptions",
            data=fields,
            files={"file": ("a.wav", bytes(9_000), "audio/wav")},
            headers={"authorization": f"Bearer {gateway.key}"},
        )


def said(form: str, told: httpx.Response) -> str:
    if form == "stream":
        events = [json.loads(line[6:]) for line in told.text.splitlines() if line.startswith("data: ")]
        return "".join(each.get("delta", "") for each in events)
    return str(told.json()["text"]) if "json" in form else told.text


async def test_no_form_goes_round_the_rules(tmp_path: Path, ear: Ear) -> None:
    """What is masked is masked in all of them, what is blocked leaves in none, and the rest is as it came."""
    async with running(tmp_path, ear, RULES) as gateway:
        for form in FORMS:
            ear.text = f"Write to {MAIL}, or do not."
            told = await heard(gateway, form)
            assert told.status_code == 200
            assert "[EMAIL_" in said(form, told), form
            assert said(form, told).endswith("], or do not."), form
            assert "jane.doe" not in told.text, form
            ear.text = f"The number is {CARD}, and more."
            told = await heard(gateway, form)
            assert "1111 1111" not in told.text, form
            assert "and more" not in told.text, form
            ear.text = "Nothing of that sort, she said. Ünïcode."
            assert said(form, await heard(gateway, form)) == ear.text, form
        rows = [row for row in await gateway.rows() if row["entry"] == "settle"]
        assert len(rows) == 3 * len(FORMS)
        assert {row["status"] for row in rows} == {200}


@pytest.mark.parametrize("window", [None, 600])
async def test_a_service_is_asked_about_transcripts(tmp_path: Path, ear: Ear, window: int | None) -> None:
    """Before a word of it goes out; without its verdict none does."""
    async with service() as judge:
        rules = [{"name": "house", "kind": "http", "url": judge.url, "timeout_ms": 30_000, "output": "block"}]
        async with running(tmp_path, ear, [{**rules[0], "window_chars": window}]) as gateway:
            for form in FORMS:
                ear.text = "It is nice. " * 90
                assert said(form, await heard(gateway, form)) == ear.text, form
                ear.text = "It is awful, she said."
                told = await heard(gateway, form)
                assert (told.status_code, "she said" in told.text) == (200, False), form

            async def down(_body: Any) -> web.StreamResponse:
                return web.Response(status=500)

            judge.answer = down
            for form in ("json", "stream"):
                assert "she said" not in (await heard(gateway, form)).text
            with pytest.raises(httpx.RemoteProtocolError):
                await heard(gateway, "text")
