"""An upstream that falls ill on demand, in the words of real providers: for what a gateway does while one of its targets is ill.

    python -m tests.ill_upstream --port 9001 --port 9002

Each port is a place of its own. A place that is well plays the scripts of `testing.scripted.server`, and answers a pool's probes as
vLLM does. `PUT /illness` with an `Illness` makes it ill, with `null` well again, and `GET /asked` says how often it was asked.
The process may be killed and started again on the same ports; `ill_upstreams` serves places in the loop of a test.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web

from testing.scripted.server import make_app
from tests.odd_engine import metrics_page
from tests.redis_server import quiet_port

ROOT: Final = Path(__file__).parents[1]
_RESET: Final = struct.pack("ii", 1, 0)
_SILENT_S: Final = 3_600.0
_READY_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.02
NOBODY: Final = "http://127.0.0.1:9"
"""Where nobody listens: connections are refused."""


class Illness(msgspec.Struct, frozen=True, kw_only=True):
    """What a place does to requests. The default is to answer them well."""

    status: int | None = None
    """The status of the refusal."""
    headers: Mapping[str, str] = {}
    body: str = ""
    silent: bool = False
    """Reads requests and never answers, as behind a firewall that drops packets."""
    resets: bool = False
    """Resets the connection once it has the request."""
    late_s: float = 0.0
    """Answers well, but begins only after so many seconds."""
    only: str = ""
    """Only requests whose body has these words suffer; empty: all do."""


def _refusal(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Illness:
    return Illness(status=status, headers=headers or {}, body=body if isinstance(body, str) else json.dumps(body))


def _openai(status: int, message: str, kind: str, code: str | None, **headers: str) -> Illness:
    told = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return _refusal(status, told, {name.replace("_", "-"): value for name, value in headers.items()})


def _anthropic(status: int, message: str, kind: str) -> Illness:
    return _refusal(status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_made_up"})


RATE_LIMITED: Final = (
    "Rate limit reached for gpt-4o-mini in organization org-made-up on tokens per min (TPM): Limit 200000, Used 199000, "
    "Requested 2000. Please try again in 20s. Visit https://platform.openai.com/account/rate-limits to learn more."
)

ILLNESSES: Final[Mapping[str, Illness]] = {
    "429 insufficient_quota": _openai(
        429,
        "You exceeded your current quota, please check your plan and billing details. For more information on this error, read "
        "the docs: https://platform.openai.com/docs/guides/error-codes/api-errors.",
        "insufficient_quota",
        "insufficient_quota",
    ),
    "429, retry-after 20": _openai(429, RATE_LIMITED, "tokens", "rate_limit_exceeded", retry_after="20"),
    "429, bare": Illness(status=429),
    "500": _openai(
        500, "The server had an error while processing your request. Sorry about that!", "server_error", None
    ),
    "503": _openai(503, "The engine is currently overloaded, please try again later.", "server_error", None),
    "reset": Illness(resets=True),
    "400 credit balance": _anthropic(
        400,
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits.",
        "invalid_request_error",
    ),
    "400 usage limits": _anthropic(
        400,
        "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.",
        "invalid_request_error",
    ),
    "401": _openai(
        401,
        "Incorrect API key provided: sk-made-up. You can find your API key at https://platform.openai.com/account/api-keys.",
        "invalid_request_error",
        "invalid_api_key",
    ),
    "402": _openai(402, "Insufficient Balance", "unknown_error", "invalid_request_error"),
    "404 model": _openai(
        404,
        "The model `gpt-4o-mini` does not exist or you do not have access to it.",
        "invalid_request_error",
        "model_not_found",
    ),
    "black hole": Illness(silent=True),
}
"""Refusals as providers' public documents and bug reports have them: OpenAI's, Anthropic's, and DeepSeek's 402."""
FROM_ANTHROPIC: Final = frozenset({"400 credit balance", "400 usage limits"})
"""Those that come on Anthropic's own wire."""
TOO_LONG: Final = _openai(
    400,
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9120 tokens. Please reduce the length "
    "of the messages.",
    "invalid_request_error",
    "context_length_exceeded",
)


class IllUpstream:
    """The server of some places, each known by its port."""

    def __init__(self) -> None:
        self._illnesses: dict[int, Illness] = {}
        self._asked: Counter[int] = Counter()

    def app(self) -> web.Application:
        app = make_app(lambda _line: None)
        app.router.add_put("/illness", self._fall_ill)
        app.router.add_get("/asked", self._tell)
        app.router.add_get("/metrics", self._metrics)
        app.middlewares.append(self._suffer)
        return app

    @web.middleware
    async def _suffer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.method != "POST":
            return await handler(request)
        port = _port_of(request)
        self._asked[port] += 1
        illness = self._illnesses.get(port)
        if illness is None or illness.only not in await request.text():
            return await handler(request)
        await asyncio.sleep(_SILENT_S if illness.silent else illness.late_s)
        if illness.resets and request.transport is not None:
            request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            request.transport.abort()
            return web.Response()
        if illness.status is None:
            return await handler(request)
        return web.Response(
            status=illness.status, text=illness.body, content_type="application/json", headers=illness.headers
        )

    async def _fall_ill(self, request: web.Request) -> web.Response:
        illness = msgspec.json.decode(await request.read(), type=Illness | None)
        if illness is None:
            self._illnesses.pop(_port_of(request), None)
        else:
            self._illnesses[_port_of(request)] = illness
        return web.Response()

    async def _tell(self, request: web.Request) -> web.Response:
        return web.json_response(self._asked[_port_of(request)])

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=metrics_page(running=0, waiting=0, kv_usage=0.1, blocks=10_000))


def _port_of(request: web.Request) -> int:
    assert request.transport is not None
    port: int = request.transport.get_extra_info("sockname")[1]
    return port


class Place:
    """One port of an `IllUpstream`, as those who test know it."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self.port = port
        self._session = session

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def become(self, illness: Illness | None) -> None:
        """Makes it ill, or with None well again."""
        async with self._session.put(f"{self.url}/illness", data=msgspec.json.encode(illness)) as reply:
            reply.raise_for_status()

    async def asked(self) -> int:
        """How many requests it has got so far."""
        async with self._session.get(f"{self.url}/asked") as reply:
            return int(await reply.json())

    def deployment(self, name: str = "main", script: str = "ok", **fields: Any) -> dict[str, Any]:
        """A deployment here that plays the script while it is well."""
        return {"name": name, "kind": "openai", "base_url": f"{self.url}/v1", "upstream_model": script, **fields}

    def anthropic_deployment(self, key: str, name: str = "main") -> dict[str, Any]:
        """One that is asked on Anthropic's wire; `key` says where the key is found."""
        return {
            "name": name,
            "kind": "litellm",
            "base_url": self.url,
            "upstream_model": "anthropic/claude-sonnet-4-5",
            "api_key": key,
        }


async def _serve(stack: contextlib.AsyncExitStack, ports: Sequence[int]) -> list[int]:
    """Serves a place at each port, until the stack closes; 0 lets the system choose. Returns the ports."""
    runner = web.AppRunner(IllUpstream().app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    for port in ports:
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4_096).start()
    return [address[1] for address in runner.addresses]


@contextlib.asynccontextmanager
async def ill_upstreams(count: int) -> AsyncIterator[list[Place]]:
    """So many places in this loop, all well, until the block ends."""
    async with contextlib.AsyncExitStack() as stack:
        ports = await _serve(stack, [0] * count)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield [Place(port, session) for port in ports]


class UpstreamProcess:
    """Places in a process of their own, which can be killed and started again."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it answers. Raises RuntimeError when it does not."""
        words = [word for port in self._ports for word in ("--port", str(port))]
        self._process = subprocess.Popen([sys.executable, "-m", "tests.ill_upstream", *words], cwd=ROOT)
        give_up_at = time.monotonic() + _READY_WITHIN_S
        while self._process.poll() is None and time.monotonic() < give_up_at:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._ports[-1]), timeout=1.0):
                return
            time.sleep(_POLL_S)
        raise RuntimeError("the upstream did not start")

    def kill(self) -> None:
        """Kill -9: its connections are reset, and new ones refused. Nothing happens to one that is dead."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def upstream_process(count: int, session: aiohttp.ClientSession) -> Iterator[tuple[UpstreamProcess, list[Place]]]:
    """So many places, all well, in one process that is gone at the end of the block."""
    ports = [quiet_port() for _ in range(count)]
    process = UpstreamProcess(ports)
    process.start()
    try:
        yield process, [Place(port, session) for port in ports]
    finally:
        process.kill()


async def _run(ports: Sequence[int]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        await _serve(stack, ports)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.ill_upstream", description="An upstream that falls ill.")
    parser.add_argument("--port", type=int, action="append", required=True)
    asyncio.run(_run(parser.parse_args().port))


if __name__ == "__main__":
    main()
