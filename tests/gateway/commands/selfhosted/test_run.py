"""`weighbridge selfhosted run`, as the process that it is."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from selfhosted.scale import keeper
from tests.processes import ROOT, Site, make_site
from tests.selfhosted.scale.door import TOKEN, WAIT_S, Door, open_door, until

CHILD = str(Path(__file__).parents[3] / "selfhosted" / "scale" / "engine_child.py")


async def site_of(folder: Path, **pool: object) -> Site:
    """A site whose one model is served by a pool that starts engines."""
    command = [sys.executable, "-I", CHILD, "{port}"]
    # Another range than that of the tests of the actuator itself.
    launch = {"command": command, "first_port": 30_500 + os.getpid() % 200 * 10, "grace_s": 2}
    pools = [
        {
            "name": "p",
            "targets": ["m"],
            "registration": {"token": "env:POOL_TOKEN", "networks": ["127.0.0.0/8"]},
            "launch": launch,
        }
        | pool
    ]
    model = {"model_id": "m", "provider": "own", "max_context_tokens": 8_192, "deployments": []}
    return await make_site(folder, [model], selfhosted={"pools": pools}, variables={"POOL_TOKEN": TOKEN})


def started(site: Site, door: Door) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gateway.cli", "selfhosted", "run", "p", "--gateway", door.url, "--name", "e"]
    with (site.folder / "run.log").open("wb") as log:
        return subprocess.Popen(command, env=site.environ(), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def seen_by(process_id: int) -> str:
    return Path(f"/proc/{process_id}/environ").read_text()


def groups(site: Site) -> list[int]:
    return [int(file.read_text().split()[2]) for file in (site.folder / "engines" / "p").glob("*.pid")]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_however_it_ends_its_engines_end(how: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM drains, and a second one does not wait for that; after kill -9 the keepers see the pipe's end."""
    site = await site_of(tmp_path)
    async with open_door() as door:
        door.desired = 2
        process = started(site, door)
        try:
            await until(lambda: len(door.registered) == 2 and len(groups(site)) == 2)
            engines = groups(site)
            assert not any(TOKEN in seen_by(group) for group in engines)
            process.send_signal(how)
            if how == signal.SIGTERM:
                await until(lambda: all(told["draining"] for told in door.registered.values()))
                process.send_signal(how)
            status = await asyncio.to_thread(process.wait, WAIT_S)
            await until(lambda: not any(keeper.alive(group) for group in engines))
        finally:
            process.kill()
            process.wait()
        assert status == (0 if how == signal.SIGTERM else -signal.SIGKILL)
        assert len(door.registered) == (0 if how == signal.SIGTERM else 2)


@pytest.mark.parametrize(
    ("pool", "name", "told"),
    [
        ({}, "q", "there is no pool `q`; the configuration has under `selfhosted.pools`: p"),
        ({"launch": None}, "p", "`p` has no `launch`"),
        ({"registration": None, "replicas": [{"name": "a", "url": "http://127.0.0.1:1"}]}, "p", "no `registration`"),
        ({"api_key": "env:NOT_SET"}, "p", "`api_key` of `p` refers to env:NOT_SET, which is not set"),
    ],
)
async def test_what_is_missing_is_said(pool: dict[str, object], name: str, told: str, tmp_path: Path) -> None:
    """In a line, with the status 1."""
    site = await site_of(tmp_path, **pool)
    ended = await site.run("selfhosted", "run", name, "--gateway", "http://127.0.0.1:9")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert told in ended.stderr


@pytest.mark.long
async def test_both_kinds_of_replicas_are_started_where_prompts_are_read_apart(tmp_path: Path) -> None:
    """As many of each as the gateway wants; those that read have names by which they are known."""
    child = {
        "command": [sys.executable, "-I", CHILD, "{port}"],
        "first_port": 32_600 + os.getpid() % 200 * 10,
        "grace_s": 2,
    }
    site = await site_of(tmp_path, prefill={"replicas": "read-*", "launch": child})
    async with open_door() as door:
        door.desired, door.desired_readers = 2, 1
        process = started(site, door)
        try:
            await until(lambda: sorted(door.registered) == ["e-1", "e-2", "read-e-1"])
            door.desired, door.desired_readers = 1, 2
            # Which of two that are alike goes nobody says.
            await until(lambda: [name.rpartition("-")[0] for name in door.takes_work] == ["e", "read-e", "read-e"])
        finally:
            process.terminate()
            # The gateway that it talks to is in this loop.
            await asyncio.to_thread(process.wait, WAIT_S)
