"""The seam between the planes under attack: whoever sends half a request neither reads nor writes anybody else's."""

import asyncio
import contextlib
import io
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from pydantic import SecretStr

from accounts.caller import Role
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.cost.entries import until
from tests.proxy.http.callers import Caller
from tests.running_gateway import PEPPER, Running, model, running_gateway
from tests.scenarios.conftest import Upstream

_FILE_BYTES: Final = 24_000_000
_OWED_BYTES: Final = 70_000
"""Of a request's body that never come, more than what is waited for before anybody answers."""
_FORGED: Final = b"x-weighbridge-peer: 127.0.0.1 1\r\nx-weighbridge-tls: 1\r\n"


async def new_key(gateway: Running, role: Role) -> str:
    """A key of this role, of team_a."""
    environment = Environment(data_dir=gateway.config_path.parent, pepper=SecretStr(PEPPER))
    pepper = peppers(load(gateway.config_path, environment), environment)[0]
    return (await gateway.accounts.create_key("team_a", role, pepper, role=role)).plaintext


async def _call(gateway: Running, **options: int) -> Caller:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    return Caller(*await asyncio.open_connection(host, int(port), **options))


def _later(gateway: Running, seconds: float) -> None:
    """Lets so much time pass for the server's connections."""
    before = gateway.server.now
    gateway.server.now = lambda: before() + seconds
    gateway.server.tick()


async def _uploaded(gateway: Running) -> str:
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", io.BytesIO(b"x" * _FILE_BYTES), filename="large.jsonl")
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {gateway.key}"}) as session,
        session.post(f"{gateway.base_url}/files", data=form) as reply,
    ):
        return str((await reply.json())["id"])


async def _slow_download(gateway: Running) -> None:
    """Asks for a large file with a body of which one byte comes, and takes the file when the body is overdue."""
    file_id = await _uploaded(gateway)
    slow = await _call(gateway, limit=1024)
    head = f"GET /v1/files/{file_id}/content HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {gateway.key}\r\n"
    await slow.send(f"{head}content-length: {_OWED_BYTES + 1}\r\n\r\nx".encode())
    await slow.head()
    _later(gateway, 31)
    with contextlib.suppress(ConnectionError):
        left = _FILE_BYTES
        while left and (piece := await slow.reader.read(left)):
            left -= len(piece)
    await slow.leave()


async def _broken_chunks(gateway: Running) -> None:
    """Sends a body in chunks to a route that answers without it, and then what is no chunk; no key is needed."""
    for turns in range(300):
        broken = await _call(gateway)
        await broken.send(b"POST /v1/nowhere HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        # Somewhere among these turns of the loop the reply comes.
        for _ in range(turns % 100):
            await asyncio.sleep(0)
        await broken.send(b"no chunk\r\n")
        await broken.rest()
        await broken.leave()


@pytest.mark.parametrize("poison", [_slow_download, _broken_chunks])
async def test_an_administrators_reply_is_nobody_elses(tmp_path: Path, upstream: Upstream, poison: object) -> None:
    """A member's key that leaves half a request at the control plane, and goes on with requests of its own making in the body
    of another one, is answered what it asked itself; the administrator gets the new key.
    """
    async with running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])]) as gateway:
        administrator = await new_key(gateway, "admin")
        await poison(gateway)  # type: ignore[operator]
        thief = await _call(gateway)
        bearer = b"authorization: Bearer %b\r\n" % gateway.key.encode()
        forged = b"GET /metrics HTTP/1.1\r\nhost: a\r\n%b%b\r\n" % (bearer, _FORGED)
        body = b"\r\n" * _OWED_BYTES + forged * 6
        await thief.send(
            b"POST /v1/nowhere HTTP/1.1\r\nhost: a\r\n%bcontent-length: %d\r\n\r\n" % (bearer, len(body)) + body
        )
        stolen = [await thief.reply()]
        async with aiohttp.ClientSession(gateway.url, headers={"authorization": f"Bearer {administrator}"}) as session:
            asked = asyncio.create_task(_another_key(session))
            while not asked.done() or len(stolen) < 8:
                await thief.send(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n%b\r\n" % bearer)
                stolen.append(await thief.reply())
            status, told = await asked
        await thief.leave()
        assert [said for _, said in stolen if b"wb-" in said] == []
        assert (status, "wb-" in told) == (201, True)
        assert [status for status, _ in stolen] == [404] + [200] * (len(stolen) - 1)
        assert all(b'"object":"list"' in said for _, said in stolen[1:])


async def _another_key(session: aiohttp.ClientSession) -> tuple[int, str]:
    async with session.put("/v1/admin/teams/team_a/keys/new", json={"role": "admin"}) as reply:
        return reply.status, await reply.text()


async def test_slow_uploads_of_one_key_close_nothing_for_others(tmp_path: Path, upstream: Upstream) -> None:
    """A team that sends twenty files byte by byte is refused itself; another team's upload, pages and models go on."""
    async with running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])]) as gateway:
        await gateway.accounts.create_team("team_b", name="Team B")
        environment = Environment(data_dir=tmp_path, pepper=SecretStr(PEPPER))
        pepper = peppers(load(gateway.config_path, environment), environment)[0]
        other = (await gateway.accounts.create_key("team_b", "b", pepper)).plaintext
        part = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + b"a" * 100_000
        head = (
            f"POST /v1/files HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {gateway.key}\r\n"
            "content-type: multipart/form-data; boundary=x\r\ncontent-length: 10000000\r\n\r\n"
        )
        slow = [await _call(gateway) for _ in range(20)]
        for caller in slow:
            await caller.send(head.encode() + part)
        refused = [asyncio.create_task(caller.head()) for caller in slow]
        await until(lambda: sum(task.done() for task in refused) == 16)
        assert {task.result()[0] for task in refused if task.done()} == {503}
        async with aiohttp.ClientSession(gateway.url, headers={"authorization": f"Bearer {other}"}) as session:
            form = aiohttp.FormData({"purpose": "batch"})
            form.add_field("file", io.BytesIO(b"x" * 200_000), filename="a.jsonl")
            for asked in (session.post("/v1/files", data=form), session.get("/v1/models")):
                async with asked as reply:
                    assert reply.status == 200
        for task in refused:
            task.cancel()
        for caller in slow:
            await caller.leave()


async def test_half_sent_sign_ins_take_nothing(tmp_path: Path, upstream: Upstream) -> None:
    """Hundreds of forms that never end, without any key, hold no connection to the control plane; pages are answered."""
    async with running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])]) as gateway:
        slow = [await _call(gateway) for _ in range(300)]
        for number, caller in enumerate(slow):
            framed = b"content-length: 100" if number % 2 else b"transfer-encoding: chunked"
            await caller.send(b"POST /dashboard/sign-in HTTP/1.1\r\nhost: a\r\n%b\r\n\r\n4\r\nuser" % framed)
        await until(lambda: len(gateway.data.others._coming) == 300)
        assert not gateway.data.others._open
        async with aiohttp.ClientSession(gateway.url) as session, session.get("/dashboard/sign-in") as reply:
            assert reply.status == 200
        for caller in slow:
            await caller.leave()
        await until(lambda: not gateway.data.others._coming)
