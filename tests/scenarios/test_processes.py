"""The gateway as operators meet it: a process that gets signals, loses its database, and must keep secrets."""

import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from cost.ledger.segments import boots
from tests.children import children_of
from tests.postgres import Postgres
from tests.processes import Oracle, Server, make_site, oracle, serving, start, until
from tests.running_gateway import model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
REFUSED_WITHIN_S = 5.0


@contextlib.asynccontextmanager
async def caller(server: Server, key: str, **connection: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """A client with one connection that it keeps."""
    connector = aiohttp.TCPConnector(limit=1, **connection)
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(server.url, headers=headers, connector=connector) as session:
        yield session


async def ask(session: aiohttp.ClientSession, name: str, **fields: Any) -> tuple[int, str, dict[str, str]]:
    """One whole reply: its status, its text and its headers."""
    body = {"model": name, "messages": QUESTION, **fields}
    async with session.post("/v1/chat/completions", json=body) as reply:
        return reply.status, await reply.text(), {name.lower(): value for name, value in reply.headers.items()}


async def ask_alone(server: Server, key: str, name: str, **fields: Any) -> tuple[int, str]:
    async with caller(server, key) as session:
        status, said, _ = await ask(session, name, **fields)
        return status, said


async def metric(session: aiohttp.ClientSession, name: str) -> float:
    """The sum over all series of one name."""
    async with session.get("/metrics") as reply:
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", await reply.text(), re.MULTILINE)
    return sum(map(float, found))


def arrived(upstream: Oracle) -> int:
    return sum(line.event == "arrived" for line in upstream.seen())


async def test_a_stop_finishes_what_runs_and_refuses_what_comes(tmp_path: Path) -> None:
    """Not ready first, 503 on connections that are kept, every stream to its end, status 0, books closed."""
    with oracle(tmp_path) as upstream:
        models = [
            model("slow", [upstream.deployment("tokens-25+every-80ms")]),
            model("late", [upstream.deployment("slow-first-token-1500ms")]),
        ]
        site = await make_site(tmp_path, models)
        async with serving(site) as server, caller(server, site.key) as kept:
            assert (await kept.get("/readyz")).status == 200
            running = [asyncio.create_task(ask_alone(server, site.key, "slow", stream=True)) for _ in range(4)]
            running.append(asyncio.create_task(ask_alone(server, site.key, "late")))
            await until(lambda: arrived(upstream) == len(running))
            server.signal(signal.SIGTERM)
            await until(lambda: _not_accepting(kept))
            status, said, headers = await ask(kept, "slow")
            assert (status, json.loads(said)["error"]["code"]) == (503, "draining")
            assert int(headers["retry-after"]) >= 1
            answers = await asyncio.gather(*running)
            assert await server.ended() == 0
    assert [status for status, _ in answers] == [200] * 5
    assert all(said.endswith("data: [DONE]\n\n") and " w24" in said for _, said in answers[:4])
    closings = await site.rows("entry != 'reserve'")
    assert [(row["entry"], row["usage_source"], row["flags"]) for row in closings] == [("settle", "upstream", "[]")] * 5
    assert len(await site.rows()) == 10
    assert boots(site.journal) == []


async def _not_accepting(session: aiohttp.ClientSession) -> bool:
    async with session.get("/readyz") as reply:
        return (reply.status, (await reply.json())["checks"]["accepting"]) == (503, False)


async def test_a_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    """After `drain_s` a stream that goes on is cut, booked with what flowed, and the status is still 0."""
    with oracle(tmp_path) as upstream:
        site = await make_site(
            tmp_path, [model("endless", [upstream.deployment("tokens-5000+every-20ms")])], server={"drain_s": 1}
        )
        async with serving(site) as server:
            running = asyncio.create_task(ask_alone(server, site.key, "endless", stream=True))
            await until(lambda: arrived(upstream) == 1)
            assert await server.stop() == 0
            with contextlib.suppress(aiohttp.ClientError):
                assert "[DONE]" not in (await running)[1]
    (closing,) = await site.rows("entry != 'reserve'")
    assert (closing["entry"], closing["usage_source"]) == ("settle", "estimated")
    assert "shutdown" in closing["flags"]
    assert closing["output_tokens"] > 0
    assert boots(site.journal) == []


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_key_that_means_nothing_any_more_is_told_of_once(tmp_path: Path, workers: str) -> None:
    """An old file is served as it is; one line of the log names the key, however many workers read the file."""
    with oracle(tmp_path) as upstream:
        models = [model("only", [upstream.deployment("ok")])]
        site = await make_site(tmp_path, models)
        site.configure(models, classifier={"second_weigher": True})
        async with serving(site, "gateway", "--workers", workers) as server, caller(server, site.key) as session:
            assert (await ask(session, "only"))[0] == 200
            (line,) = [told for told in server.log.splitlines() if "second_weigher" in told]
            assert json.loads(line)["level"] == "warning"
            assert "has no effect any more" in json.loads(line)["event"]
            assert await server.stop() == 0


async def test_a_reload_takes_a_good_file_and_refuses_a_bad_one_whole(tmp_path: Path) -> None:
    """A new alias answers; after a bad file the old rules go on, and the log says where the file is wrong."""
    with oracle(tmp_path) as upstream:
        models = [model("only", [upstream.deployment("ok")])]
        site = await make_site(tmp_path, models)
        async with serving(site) as server, caller(server, site.key) as session:
            assert (await ask(session, "fast"))[0] == 404
            site.configure(models, policy={"aliases": {"fast": "only"}})
            server.signal(signal.SIGHUP)
            await until(lambda: _answers(session, "fast"))
            site.configure(models, policy={"aliases": {"faster": "only"}, "alias": {}})
            wrong = site.config_path.read_text().splitlines().index("  alias: {}") + 1
            server.signal(signal.SIGHUP)
            await until(lambda: "reload refused" in server.log)
            (line,) = [told for told in server.log.splitlines() if "reload refused" in told]
            assert f"{site.config_path}:{wrong}" in json.loads(line)["event"]
            assert "policy.alias" in json.loads(line)["event"]
            assert (await ask(session, "fast"))[0] == 200
            assert (await ask(session, "faster"))[0] == 404
            assert await server.stop() == 0


@pytest.mark.long
async def test_a_reload_during_the_start_is_survived(tmp_path: Path) -> None:
    """A SIGHUP that comes before anybody listens for it does not end the process."""
    site = await make_site(tmp_path, [model("only", [{"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}])])
    server = start(site)
    try:
        await server.listening()
        server.signal(signal.SIGHUP)
        await server.ready()
        assert await server.stop() == 0
    finally:
        server.kill()


async def _answers(session: aiohttp.ClientSession, name: str) -> bool:
    return (await ask(session, name))[0] == 200


async def test_two_workers_are_one_gateway(tmp_path: Path) -> None:
    """Either worker's metrics are the sum, a new key works on both at once, and a revoked one soon on neither."""
    with oracle(tmp_path) as upstream:
        site = await make_site(tmp_path, [model("only", [upstream.deployment("ok")])])
        async with serving(site, "gateway", "--workers", "2") as server, contextlib.AsyncExitStack() as stack:
            await until(lambda: len(server.workers()) == 2)
            made = json.loads((await site.run("keys", "create", "team_a", "--json")).stdout)
            one, other = await _one_of_each(server, made["key"], stack)
            for session, count in ((one, 3), (other, 5)):
                for _ in range(count):
                    assert (await ask(session, "only"))[0] == 200
            for session in (one, other):
                # A worker writes down what it counted once a second, and when it is asked itself.
                await until(functools.partial(_counts, session, "weighbridge_requests_total", 8))
                assert await metric(session, "weighbridge_build_info") == 1
            assert (await site.run("keys", "revoke", made["key_id"])).returncode == 0
            revoked_at = time.monotonic()
            for session in (one, other):
                while (status := (await ask(session, "only"))[0]) == 200:
                    assert time.monotonic() - revoked_at < REFUSED_WITHIN_S
                    await asyncio.sleep(0.05)
                assert status == 401
            assert await server.stop() == 0
    assert boots(site.journal) == []


async def _counts(session: aiohttp.ClientSession, name: str, expected: int) -> bool:
    found = await metric(session, name)
    assert found <= expected
    return found == expected


async def _one_of_each(
    server: Server, key: str, stack: contextlib.AsyncExitStack
) -> tuple[aiohttp.ClientSession, aiohttp.ClientSession]:
    """Two clients whose connections ended up in different workers, both of which answer."""
    found: dict[int, aiohttp.ClientSession] = {}
    async with asyncio.timeout(60):
        while len(found) < 2:
            # At once, so that one worker alone does not get them all.
            kept = [_Kept() for _ in range(8)]
            sessions = [await stack.enter_async_context(caller(server, key, socket_factory=each.make)) for each in kept]
            await asyncio.gather(*(session.get("/readyz") for session in sessions))
            for session, each in zip(sessions, kept, strict=True):
                found.setdefault(_holder(server, each.port), session)
    one, other = found.values()
    return one, other


class _Kept:
    """Remembers its connection's own port."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def make(self, address: Any) -> socket.socket:
        self._socket = socket.socket(*address[:3])
        return self._socket

    @property
    def port(self) -> int:
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port


def _holder(server: Server, port: int) -> int:
    """Which worker has the other end of the connection from this port."""
    (inode,) = [
        fields[9]
        for fields in (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        if fields[2].endswith(f":{port:04X}") and fields[1].endswith(f":{int(server.url.rpartition(':')[2]):04X}")
    ]
    for pid in server.workers():
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if str(descriptor.readlink()) == f"socket:[{inode}]":
                    return pid
    raise AssertionError("no worker holds the connection")


async def test_a_locked_database_delays_the_books_only(tmp_path: Path) -> None:
    """While another writer holds SQLite, requests are served and the journal grows; afterwards it is drained."""
    with oracle(tmp_path) as upstream:
        site = await make_site(tmp_path, [model("only", [upstream.deployment("ok")])])
        async with serving(site) as server, caller(server, site.key) as session:
            with contextlib.closing(sqlite3.connect(tmp_path / "weighbridge.sqlite", isolation_level=None)) as writer:
                writer.execute("BEGIN IMMEDIATE")
                for _ in range(5):
                    assert (await ask(session, "only"))[0] == 200
                assert await metric(session, "weighbridge_journal_depth") == 10
                writer.execute("ROLLBACK")
            await until(lambda: _drained(session))
            assert len(await site.rows()) == 10
            assert await server.stop() == 0
    assert boots(site.journal) == []


async def _drained(session: aiohttp.ClientSession) -> bool:
    return await metric(session, "weighbridge_journal_depth") == 0


class Bridge:
    """The way to a database, which can be cut: open connections break and new ones are refused."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.mark.long
async def test_a_database_that_is_gone_takes_no_key_with_it(tmp_path: Path, postgres: Postgres) -> None:
    """Known keys are served, unknown ones are told 503 and never 401, and the books are made up for later."""
    url = await postgres.database()
    head, _, database = url.rpartition("/")
    bridge = Bridge(int(head.rpartition(":")[2]))
    await bridge.open()
    with oracle(tmp_path) as upstream:
        site = await make_site(
            tmp_path,
            [model("only", [upstream.deployment("ok")])],
            database_url=f"postgresql://postgres@127.0.0.1:{bridge.port}/{database}",
            # Believed for a moment only, so that the outage is noticed.
            accounts={"fresh_s": 0.05, "lookup_timeout_s": 0.5},
        )
        fresh = json.loads((await site.run("keys", "create", "team_a", "--json")).stdout)["key"]
        async with serving(site) as server, caller(server, site.key) as session, caller(server, fresh) as newcomer:
            assert (await ask(session, "only"))[0] == 200
            await bridge.cut()
            for _ in range(10):
                assert (await ask(session, "only"))[0] == 200
                status, said, headers = await ask(newcomer, "only")
                assert (status, json.loads(said)["error"]["code"]) == (503, "accounts_unavailable")
                assert "retry-after" in headers
                await asyncio.sleep(0.02)
            assert await metric(session, "weighbridge_journal_depth") >= 20
            async with session.get("/readyz") as reply:
                assert reply.status == 200
            await bridge.open()
            await until(lambda: _drained(session))
            await until(lambda: _answers(newcomer, "only"))
            assert await server.stop() == 0
        rows = await site.rows()
        await bridge.cut()
    assert len(rows) == 2 * 12
    assert boots(site.journal) == []


@contextlib.contextmanager
def frozen(postgres: Postgres) -> Iterator[None]:
    """SIGSTOP for the server and all of its backends: the system accepts connections for it, and nothing is answered."""
    # The postmaster first, so that it starts no more of them.
    stopped: list[int] = []
    try:
        for pid in (postgres.pid, *children_of(postgres.pid)):
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


async def test_nobody_waits_for_a_database_that_hangs(tmp_path: Path, postgres: Postgres) -> None:
    """A key that is known is looked up for no request, though it is believed for less long than the database hangs."""
    url = await postgres.database()
    with oracle(tmp_path) as upstream:
        accounts = {"fresh_s": 2, "lookup_timeout_s": 0.5}
        models = [model("only", [upstream.deployment("ok")])]
        site = await make_site(tmp_path, models, database_url=url, accounts=accounts)
        async with serving(site) as server, caller(server, site.key) as session:
            assert (await ask(session, "only"))[0] == 200
            asked = 1
            with frozen(postgres):
                # Twice as long as it is believed.
                believed_until = time.monotonic() + 2 * accounts["fresh_s"]
                while time.monotonic() < believed_until:
                    assert (await ask(session, "only"))[0] == 200
                    asked += 1
                    await asyncio.sleep(0.05)
                # Whoever reads the keys anew has noticed; a request that had waited would have said that it did not answer.
                assert "the key store does not answer" in server.log
                assert "the key store did not answer" not in server.log
            await until(lambda: _drained(session))
            assert await server.stop() == 0
        assert len(await site.rows("entry = 'settle'")) == asked


@pytest.mark.parametrize(
    ("change", "variables", "told"),
    [
        (lambda _: None, {"WEIGHBRIDGE_PEPPER": None}, r"^weighbridge: no pepper: set WEIGHBRIDGE_PEPPER"),
        (lambda _: None, {"WEIGHBRIDGE_PEPPER": "short"}, r"WEIGHBRIDGE_PEPPER: must have at least 32"),
        (
            lambda config: config["server"].update(prot=1),
            {},
            r"gateway\.yaml:\d+: server\.prot\b.*port",
        ),
        (
            lambda config: config["providers"]["models"][0]["deployments"][0].update(api_key="env:NOT_THERE"),
            {},
            r"gateway\.yaml:\d+: providers\.models\[0\]\.deployments\[0\]\.api_key.* NOT_THERE, which is not set",
        ),
        (
            lambda _: None,
            {"WEIGHBRIDGE_DATABASE_URL": "postgresql://nobody:canary-password@127.0.0.1:9/none?ssl_mode=require"},
            r"^weighbridge: environment: WEIGHBRIDGE_DATABASE_URL: unknown parameter `ssl_mode` of the database's address",
        ),
    ],
    ids=["no-pepper", "short-pepper", "unknown-key", "secret-not-set", "no-such-parameter"],
)
async def test_a_start_that_cannot_work_is_refused_in_words(
    tmp_path: Path, change: Callable[[Any], None], variables: dict[str, str | None], told: str
) -> None:
    """A line or two that name what to mend, no traceback, and a status that is not 0."""
    deployment = {"name": "main", "kind": "openai", "base_url": "http://127.0.0.1:9/v1"}
    site = await make_site(tmp_path, [model("only", [deployment])], server={"workers": 1})
    config = yaml.safe_load(site.config_path.read_text())
    change(config)
    site.config_path.write_text(yaml.safe_dump(config))
    ended = await site.run("serve", **variables)
    assert ended.returncode == 1
    assert re.search(told, ended.stderr, re.MULTILINE)
    assert "Traceback" not in ended.stderr
    assert "canary" not in ended.stderr
    assert len(ended.stderr.splitlines()) <= 3
    assert "listening on" not in ended.stdout + ended.stderr


PROMPT = "the-otters-of-Quillhaven-never-invoice"
COMPLETION = "marmalade-zeppelins-over-Ystradgynlais"
UPSTREAM_KEY = "sk-canary-0a1b2c3d4e5f60718293"


async def _indiscreet(request: web.Request) -> web.StreamResponse:
    """An upstream that repeats in every error what it was told."""
    asked = await request.json()
    # What it says of its own accord may be logged, so that a failure can be traced.
    quoted = f"{PROMPT} {request.headers['authorization']}"
    match asked["model"]:
        case "500" | "400" | "401" | "429" as status:
            error = {"error": {"message": quoted, "type": quoted, "param": quoted, "code": quoted}}
            return web.json_response(error, status=int(status))
        case "malformed":
            return web.Response(text=f"data: {{{quoted}\n\n", content_type="text/event-stream")
        case "html":
            return web.Response(text=f"<html>{quoted}</html>", content_type="text/html")
        case "cut":
            reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await reply.prepare(request)
            delta = {"id": "x", "choices": [{"index": 0, "delta": {"content": COMPLETION}, "finish_reason": None}]}
            await reply.write(f"data: {json.dumps(delta)}\n\n".encode())
            assert request.transport is not None
            request.transport.abort()
            return reply
    return _said(COMPLETION, stream=bool(asked.get("stream")))


def _said(words: str, *, stream: bool) -> web.Response:
    kind = "delta" if stream else "message"
    choice = {"index": 0, kind: {"role": "assistant", "content": words}, "finish_reason": "stop"}
    whole = json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})
    if not stream:
        return web.Response(text=whole, content_type="application/json")
    return web.Response(text=f"data: {whole}\n\ndata: [DONE]\n\n", content_type="text/event-stream")


@contextlib.asynccontextmanager
async def _indiscreet_upstream() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", _indiscreet)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


SCRIPTS = ["fine", "500", "400", "401", "429", "malformed", "html", "cut"]


@pytest.mark.long
async def test_no_secret_is_written_down(tmp_path: Path) -> None:
    """Prompts, answers and keys occur in no log line, metric, journal or database, whatever goes wrong."""
    async with _indiscreet_upstream() as url:
        models = [
            model(
                f"m-{script}",
                [{"kind": "openai", "base_url": url, "upstream_model": script, "api_key": "env:CANARY_KEY"}],
            )
            for script in SCRIPTS
        ]
        site = await make_site(
            tmp_path,
            models,
            variables={"CANARY_KEY": UPSTREAM_KEY},
            # Everything is logged, and the journal keeps what it gets.
            telemetry={"log_success_share": 1},
            cost={"drain_interval_s": 60},
        )
        async with serving(site) as server, caller(server, site.key) as session:
            answers = await _talk_of_secrets(session, server)
            async with session.get("/metrics") as reply:
                shown = [await reply.read()]
            shown += [path.read_bytes() for path in site.journal.iterdir()]
            assert PROMPT.encode() not in b"".join(shown)
            assert sum(map(len, shown[1:])) > 1_000
            assert await server.stop() == 0
    # The callers themselves got their answers, and not our key.
    assert sum(COMPLETION in said for said in answers) >= 3
    assert not any(UPSTREAM_KEY in said for said in answers)
    shown += _written_in(tmp_path, besides=site.config_path)
    assert len(await site.rows()) > len(SCRIPTS)
    # A key's public part may be known; what follows it may not.
    secrets = [PROMPT, COMPLETION, UPSTREAM_KEY, site.key, site.key.rpartition("-")[2], "canary"]
    for secret in secrets:
        assert not any(secret.encode() in written for written in shown), f"{secret} was written down"


def _written_in(folder: Path, *, besides: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file() and path != besides]


async def _talk_of_secrets(session: aiohttp.ClientSession, server: Server) -> list[str]:
    """Everything that a caller can say a secret in, with every way to fail."""
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": PROMPT}]
    # An end user is booked, so that is told apart.
    fields = {"messages": messages, "user": "user-7", "metadata": {"note": PROMPT}, "stop": [PROMPT]}
    answers = []
    for stream in (False, True):
        for name in [*(f"m-{script}" for script in SCRIPTS), "auto", PROMPT]:
            with contextlib.suppress(aiohttp.ClientError):
                answers.append((await ask(session, name, stream=stream, **fields))[1])
    odd: list[dict[str, Any]] = [
        {"data": f'{{"model": "m-fine", "messages": "{PROMPT}'.encode()},
        {"json": {"model": "m-fine", "messages": [{"role": PROMPT, "content": PROMPT}], "api_base": PROMPT}},
        {"json": {"model": "m-fine", "messages": messages, PROMPT: PROMPT, "x-team-id": PROMPT}},
        {"json": {"model": "m-fine", "messages": messages, "x-tier": PROMPT}, "headers": {"x-session-id": PROMPT}},
        {"json": {"model": "m-fine", "messages": [{"role": "user", "content": f"{PROMPT} " * 20_000}]}},
        {"json": {}, "headers": {"authorization": f"Bearer wb-{'canary' * 9}"}},
        {"json": {}, "headers": {"authorization": f"Basic {UPSTREAM_KEY}"}},
        {"json": {}, "params": {"prompt": PROMPT, "key": UPSTREAM_KEY}},
    ]
    for request in odd:
        async with session.post("/v1/chat/completions", **request) as reply:
            answers.append(await reply.text())
    async with session.get(f"/v1/{PROMPT}", params={"q": UPSTREAM_KEY}) as reply:
        assert reply.status == 404
    async with session.get("/v1/usage", params={"team_id": PROMPT, "date": PROMPT}) as reply:
        assert reply.status in {400, 404}
    return answers
