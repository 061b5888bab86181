"""Keys and data of gateways whose commands are started in several folders, with real processes."""

import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.nursery import nursery
from tests.processes import WAIT_S, Server, make_site

MODEL = {
    "model_id": "m",
    "provider": "openai",
    "max_context_tokens": 1000,
    "prices": {"input": 1.0, "output": 1.0},
    "deployments": [{"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}],
}
CONFIG = """\
accounts: {pepper_file: var/pepper}
server: {port: 0}
telemetry: {metrics_local: true}
providers:
  models:
    - model_id: m
      provider: openai
      max_context_tokens: 1000
      prices: {input: 1.0, output: 1.0}
      deployments: [{kind: openai, base_url: "http://127.0.0.1:9/v1"}]
"""


class _Place:
    """A folder with a configuration and nothing else, and others from which commands are started."""

    def __init__(self, root: Path, environ: dict[str, str]) -> None:
        self.root = root
        self.config = root / "b" / "gateway.yaml"
        self.environ = environ
        for name in "abc":
            (root / name).mkdir()
        self.config.write_text(CONFIG)

    def run(self, folder: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        given = [*arguments, "--config", str(self.config)]
        environ = self.environ | variables
        return nursery().run(given, environ=environ, cwd=self.root / folder, timeout_s=WAIT_S)

    def make_key(self, folder: str, **variables: str) -> str:
        made = self.run(folder, "keys", "create", "team_a", **variables)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    @contextlib.asynccontextmanager
    async def serving(self, folder: str, **variables: str) -> AsyncIterator[Server]:
        log = self.root / f"{folder}.log"
        log.touch()
        arguments = ["serve", "--config", str(self.config)]
        environ = self.environ | variables
        server = Server(nursery().start(arguments, environ=environ, cwd=self.root / folder, log=log), log)
        try:
            await server.ready()
            yield server
        finally:
            server.kill()

    def names(self, folder: str) -> set[str]:
        return {str(each.relative_to(self.root / folder)) for each in (self.root / folder).rglob("*") if each.is_file()}


@pytest.fixture
async def place(tmp_path: Path) -> _Place:
    (tmp_path / "made").mkdir()
    environ = (await make_site(tmp_path / "made", [MODEL])).environ()
    bare = {name: value for name, value in environ.items() if not name.startswith("WEIGHBRIDGE_")}
    return _Place(tmp_path, bare)


async def _status(server: Server, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as session, session.get(f"{server.base_url}/models", headers=headers) as reply:
        return reply.status


async def test_keys_made_in_one_folder_work_for_a_gateway_started_in_another(place: _Place) -> None:
    """With the same --config, whatever the folder: one database, one pepper, one journal, beside the configuration."""
    assert place.run("a", "teams", "create", "team_a").returncode == 0
    keys = [place.make_key("a"), place.make_key("c")]
    async with place.serving("c") as server:
        assert [await _status(server, key) for key in [*keys, place.make_key("b")]] == [200, 200, 200]
    assert {"gateway.yaml", "var/pepper", "var/weighbridge.sqlite"} <= place.names("b")
    assert (place.root / "b/var/journal").is_dir()
    assert place.names("a") == place.names("c") == set()


async def test_a_volume_holds_everything_that_is_kept(place: _Place) -> None:
    """With WEIGHBRIDGE_DATA_DIR a second container with the same volume has the keys; nothing is written beside it."""
    volume = {"WEIGHBRIDGE_DATA_DIR": str(place.root / "data")}
    place.run("a", "teams", "create", "team_a", **volume)
    key = place.make_key("a", **volume)
    for folder in "ac":
        async with place.serving(folder, **volume) as server:
            assert await _status(server, key) == 200
    assert {"pepper", "weighbridge.sqlite"} <= place.names("data")
    assert (place.root / "data/journal").is_dir()
    assert (place.names("a"), place.names("b"), place.names("c")) == (set(), {"gateway.yaml"}, set())


async def test_an_older_versions_data_are_found(place: _Place) -> None:
    """Started where an older version left its data, commands refuse with both places and begin nothing; what they say mends it."""
    old = {"WEIGHBRIDGE_DATA_DIR": str(place.root / "a/var")}
    place.run("c", "teams", "create", "team_a", **old)
    key = place.make_key("c", **old)
    for command in (["serve"], ["keys", "list"], ["teams", "create", "team_b"], ["config", "check"]):
        refused = place.run("a", *command)
        assert refused.returncode == 1
        for each in (place.root / "b/var/weighbridge.sqlite", place.root / "a/var/weighbridge.sqlite"):
            assert str(each) in refused.stderr
        assert f"WEIGHBRIDGE_DATA_DIR={place.root / 'a/var'}" in refused.stderr
    assert place.names("b") == {"gateway.yaml"}
    async with place.serving("a", **old) as server:
        assert await _status(server, key) == 200


async def test_no_second_pepper_beside_keys(place: _Place) -> None:
    """Where the pepper's file is gone and keys are there, no command makes another; one made by hand is told of, and keys under it
    need the dead ones to be revoked.
    """
    place.run("a", "teams", "create", "team_a")
    place.make_key("a")
    pepper = place.root / "b/var/pepper"
    kept = pepper.read_text()
    pepper.unlink()
    for command in (["serve"], ["keys", "create", "team_a"], ["people", "invite", "ann@example.com"]):
        refused = place.run("a", *command)
        assert refused.returncode == 1
        assert f"{pepper} is not there, and the database has 1 key" in refused.stderr
    assert not pepper.exists()
    pepper.write_text("ab" * 32)
    refused = place.run("a", "keys", "create", "team_a")
    assert refused.returncode == 1
    assert "no key was made: here none of the keys works" in refused.stderr
    listed = place.run("c", "keys", "list")
    assert listed.returncode == 0
    assert "none of the keys works: 1 key made under the pepper p" in listed.stderr
    async with place.serving("c") as server:
        assert "none of the keys works" in server.log
    pepper.write_text(kept)
    assert place.run("a", "keys", "list").stderr == ""
    place.make_key("c")


async def test_a_folder_that_cannot_be_written_ends_the_start(place: _Place) -> None:
    """`serve` names what it cannot keep and ends, before it says that it listens."""
    blocked = place.root / "b" / "var"
    blocked.write_text("no folder")
    refused = place.run("a", "serve")
    assert refused.returncode == 1
    assert f"the database: cannot write to {blocked}" in refused.stderr
    assert "listening" not in refused.stderr + refused.stdout
