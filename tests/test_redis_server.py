"""The Redis of the tests does what tests do to it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.redis_server import RedisServer, lives, running_redis


def _keeps(server: RedisServer, key: str) -> bool:
    return server.ask("EXISTS", key) == ":1"


def test_a_restart_empties_it_and_keeps_its_port(empty_redis: RedisServer) -> None:
    """A killed server comes back on the same port, as another process and without its keys."""
    before = empty_redis.pid
    assert empty_redis.ask("SET", "a b", "1") == "+OK"
    assert _keeps(empty_redis, "a b")
    empty_redis.restart()
    assert empty_redis.pid != before
    assert not _keeps(empty_redis, "a b")


def test_a_frozen_server_keeps_its_keys(empty_redis: RedisServer) -> None:
    """Freezing loses nothing; the server answers again once it is thawed."""
    empty_redis.ask("SET", "kept", "1")
    empty_redis.freeze()
    empty_redis.thaw()
    assert _keeps(empty_redis, "kept")


@pytest.mark.parametrize("harm", ["freeze", "kill"])
def test_each_test_begins_with_an_empty_server(empty_redis: RedisServer, harm: str) -> None:
    """Whatever was done to the server, the next test finds it running and empty."""
    empty_redis.ask("SET", "left", "1")
    getattr(empty_redis, harm)()
    empty_redis.empty()
    assert empty_redis.ask("DBSIZE") == ":0"


def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Kill -9 of the tests leaves no server behind."""
    script = "import time; from tests.redis_server import running_redis\nwith running_redis() as s: print(s.pid, flush=True); time.sleep(60)"
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.communicate()
    give_up_at = time.monotonic() + 20
    while time.monotonic() < give_up_at:
        if not lives(pid):
            return
        time.sleep(0.01)
    pytest.fail("the server outlived its owner")


def test_two_servers_share_nothing() -> None:
    """Each block has a server of its own."""
    with running_redis() as one, running_redis() as other:
        one.ask("SET", "here", "1")
        assert one.port != other.port
        assert not _keeps(other, "here")
    assert not one.running
