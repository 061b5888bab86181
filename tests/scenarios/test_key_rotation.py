"""Keys of providers that stand in files and are replaced while calls go on: no call fails, nobody restarts anything."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from providers.key_files import digest_of
from tests.fleet import Place, callers, pool, pooled_model
from tests.odd_engine import odd_engines
from tests.processes import until
from tests.providers.wires import Provider, provider
from tests.running_gateway import DEAR_PRICES, Running, running_gateway
from tests.scenarios.test_model_facts import ASK, answer, bare, client

_CALLERS = 8


class KeyedProvider:
    """A provider that takes some keys, and notes which it was called with."""

    def __init__(self, *keys: str) -> None:
        self.accepted = set(keys)
        self.taken: list[str] = []
        self.refused: list[str] = []

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        key = request.headers["authorization"].removeprefix("Bearer ")
        if key not in self.accepted:
            self.refused.append(key)
            told = {
                "message": "Incorrect API key provided.",
                "type": "invalid_request_error",
                "code": "invalid_api_key",
            }
            return web.json_response({"error": told}, status=401)
        self.taken.append(key)
        await asyncio.sleep(0.01)
        return web.json_response(answer(body))


class Mount:
    """A secret as Kubernetes mounts it: the file is a link into a folder that is a link, which is swapped."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        self._times = 0
        folder.mkdir()
        self.path = folder / "key"
        self.swap(key)
        self.path.symlink_to("..data/key")

    def swap(self, key: str) -> None:
        self._times += 1
        version = self._folder / f"..version-{self._times}"
        version.mkdir()
        (version / "key").write_text(f"{key}\n")
        (self._folder / "..tmp").symlink_to(version.name)
        (self._folder / "..tmp").rename(self._folder / "..data")


@contextlib.asynccontextmanager
async def _gateway(folder: Path, served: Provider, path: Path) -> AsyncIterator[Running]:
    entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
    entry["deployments"][0]["api_key"] = f"file:{path}"
    async with running_gateway(folder, [entry]) as gateway:
        yield gateway


class _Load:
    """Callers that ask one after the other until they are told to stop."""

    def __init__(self, ask: openai.AsyncOpenAI) -> None:
        self._ask = ask
        self._over = False
        self.answered = 0

    async def caller(self) -> None:
        while not self._over:
            await self._ask.chat.completions.create(model="some-model", messages=ASK)
            self.answered += 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for _ in range(_CALLERS):
                group.create_task(self.caller())
            yield
            self._over = True


async def test_a_key_is_replaced_under_load_and_no_call_fails(tmp_path: Path) -> None:
    """Both keys are taken for a while, as providers advise; then the old one is withdrawn, and nobody uses it."""
    upstream, mount = KeyedProvider("key-a"), Mount(tmp_path / "secret", "key-a")
    async with (
        provider(upstream) as served,
        _gateway(tmp_path, served, mount.path) as gateway,
        client(gateway) as ask,
    ):
        load = _Load(ask)
        async with load.running():
            await until(lambda: len(upstream.taken) > 20)
            upstream.accepted.add("key-b")
            mount.swap("key-b")
            await until(lambda: upstream.taken[-_CALLERS:] == ["key-b"] * _CALLERS)
            upstream.accepted.remove("key-a")
            seen = len(upstream.taken)
            await until(lambda: len(upstream.taken) > seen + 20)
        rows = await gateway.rows("entry = 'settle'")
        page = gateway.live._metrics.requests.registry
    assert not upstream.refused
    assert load.answered == len(upstream.taken) == len(rows)
    labels = {"file": str(mount.path), "key": digest_of("key-b")}
    assert page.get_sample_value("weighbridge_provider_key_read_seconds", labels)
    assert not page.get_sample_value("weighbridge_provider_key_read_seconds", {**labels, "key": digest_of("key-a")})


@pytest.mark.parametrize("in_time", [True, False], ids=["after the file", "before the file"])
async def test_a_key_that_takes_the_place_of_another_at_once_fails_no_call(tmp_path: Path, *, in_time: bool) -> None:
    """Without any overlap: a refusal reads the file anew, and a new key that is not taken yet lets the old one go on."""
    upstream, mount = KeyedProvider("key-a"), Mount(tmp_path / "secret", "key-a")
    async with (
        provider(upstream) as served,
        _gateway(tmp_path, served, mount.path) as gateway,
        client(gateway) as ask,
    ):
        load = _Load(ask)
        async with load.running():
            await until(lambda: len(upstream.taken) > 20)
            mount.swap("key-b")
            if not in_time:
                # The provider learns of its new key later than the gateway.
                await until(lambda: "key-b" in upstream.refused)
            upstream.accepted = {"key-b"}
            await until(lambda: upstream.taken[-_CALLERS:] == ["key-b"] * _CALLERS)
        rows = await gateway.rows("entry = 'settle'")
    assert load.answered == len(rows)


async def test_a_mended_key_is_called_with_at_once(tmp_path: Path) -> None:
    """A refused key opens the circuit; another one in its place, written over as an agent may, closes it."""
    path = tmp_path / "key"
    path.write_text("wrong")
    upstream = KeyedProvider("right")
    async with provider(upstream) as served, _gateway(tmp_path, served, path) as gateway, client(gateway) as ask:
        with pytest.raises(openai.APIStatusError):
            await ask.chat.completions.create(model="some-model", messages=ASK)
        assert gateway.live.breakers.state("some-model/main") == "open"
        path.write_text("")
        path.write_text("right")
        await until(lambda: gateway.live.breakers.state("some-model/main") == "closed")
        await ask.chat.completions.create(model="some-model", messages=ASK)
    assert upstream.refused == ["wrong"]


async def test_the_key_of_a_pools_engines_is_replaced(tmp_path: Path) -> None:
    """Engines take one key each and are started anew one after the other: no call fails, and probes come with the new key."""
    mount = Mount(tmp_path / "secret", "key-a")
    async with odd_engines("one", "two") as engines:
        for engine in engines:
            engine.key = "key-a"
        own = pool([Place(each.name, each.url) for each in engines], api_key=f"file:{mount.path}")
        async with (
            running_gateway(tmp_path, [pooled_model()], selfhosted={"pools": [own]}) as gateway,
            callers(gateway) as fleet,
        ):
            await fleet.until_states(one="ready", two="ready")
            assert [(await fleet.ask(ASK)).status for _ in range(4)] == [200] * 4
            engines[0].key = "key-b"
            mount.swap("key-b")
            await until(lambda: engines[0].keys[-1] == ("/metrics", "key-b"))
            assert [(await fleet.ask(ASK)).status for _ in range(8)] == [200] * 8
            engines[1].key = "key-b"
            await until(lambda: engines[1].keys[-1] == ("/metrics", "key-b"))
            assert [(await fleet.ask(ASK)).status for _ in range(4)] == [200] * 4
    assert all(engine.asked for engine in engines)


async def test_an_empty_or_missing_file_changes_nothing(tmp_path: Path) -> None:
    """A file that is written just now, or unmounted, is no reason to stop."""
    path = tmp_path / "key"
    path.write_text("key-a")
    upstream = KeyedProvider("key-a")
    async with provider(upstream) as served, _gateway(tmp_path, served, path) as gateway, client(gateway) as ask:
        keys = gateway.live.keys
        for change in (lambda: path.write_text(""), path.unlink):
            change()
            assert [keys.look(), keys.look()] == [False, False]
            await ask.chat.completions.create(model="some-model", messages=ASK)
    assert upstream.taken == ["key-a"] * 2


async def test_sighup_reads_the_file_at_once(tmp_path: Path) -> None:
    """A reload waits for no look."""
    path = tmp_path / "key"
    path.write_text("key-a")
    upstream = KeyedProvider("key-b")
    async with provider(upstream) as served, _gateway(tmp_path, served, path) as gateway, client(gateway) as ask:
        path.write_text("key-b")
        gateway.data.reload()
        await ask.chat.completions.create(model="some-model", messages=ASK)
    assert not upstream.refused
