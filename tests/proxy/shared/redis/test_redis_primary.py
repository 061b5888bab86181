"""The primary is found: with real Sentinels and a real cluster, which die, hang, lie and ask for passwords."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink
from tests.proxy.shared.redis.test_redis_link import PREFIX, QUICK, SECTION, Watched, hold, linked, until
from tests.redis_server import RedisServer, quiet_port
from tests.redis_topologies import SERVICE, Topology, asked, cluster, sentinels, started
from tests.selfhosted.discovery.authorities import ONE, TWO

pytestmark = pytest.mark.story

_WITHIN = SECTION.model_copy(update={"connect_timeout_s": 3.0})


@pytest.fixture(scope="module")
def watched() -> Iterator[Topology]:
    """Nobody kills its primary."""
    with sentinels(down_after_ms=60_000) as made:
        yield made


@pytest.fixture(scope="module")
def sharded() -> Iterator[Topology]:
    with cluster(node_timeout_ms=60_000) as made:
        yield made


async def _why(url: str, section: RedisSection = _WITHIN) -> str:
    """Why it is not used."""
    link = RedisLink(url, section, "boot")
    await link.start()
    try:
        await until(lambda: bool(link.problem))
        return link.problem
    finally:
        await link.aclose()


async def test_sentinels_name_the_primary(watched: Topology, caplog: pytest.LogCaptureFixture) -> None:
    """The log says which."""
    caplog.set_level(logging.INFO)
    async with linked(watched.url) as link:
        assert await hold(link) == 1
        assert f"its primary is 127.0.0.1:{watched.servers[0].port}" in caplog.text
        assert link.place.startswith(f"{SERVICE} by 127.0.0.1:")


async def test_one_sentinel_may_be_away(watched: Topology) -> None:
    """It hangs; an address that nobody listens at and a name that nobody resolves are no hindrance, as those that answer know the others."""
    first, second, _ = watched.others
    nodes = watched.url.replace(f"127.0.0.1:{second.port}", "127.0.0.1:1").replace(
        f"/{SERVICE}", f",no-such-host.invalid/{SERVICE}"
    )
    first.freeze()
    try:
        async with linked(nodes, section=_WITHIN):
            pass
    finally:
        first.thaw()


async def test_an_address_may_name_one_sentinel_of_three(watched: Topology) -> None:
    """As a service of Kubernetes does: the others are asked, too, and each counts once."""
    only = watched.others[0].port
    async with linked(f"redis+sentinel://127.0.0.1:{only}/{SERVICE}"):
        pass
    for each in watched.others[1:]:
        each.freeze()
    try:
        told = await _why(f"redis+sentinel://127.0.0.1:{only},localhost:{only}/{SERVICE}", QUICK)
        assert f"1 of 3 Sentinels name 127.0.0.1:{watched.servers[0].port}" in told
    finally:
        for each in watched.others[1:]:
            each.thaw()


async def test_those_cut_off_with_an_old_primary_do_not_decide(caplog: pytest.LogCaptureFixture) -> None:
    """The primary and a Sentinel, which is made anew and knows it alone, are on an island. The others elect the replica, which is followed;
    when only the island can be reached, neither is used (redis-py PR 689, go-redis #1019, bitnami/charts #5418).
    """
    counted = Watched()
    with sentinels() as split:
        (old, new), (island, *most) = split.servers, split.others
        async with linked(split.url, section=QUICK, watched=counted) as link:
            await asyncio.to_thread(split.has_copied)
            island.kill()
            old.freeze()
            await until(lambda: counted.primary_changes == 1)
            assert f"has another primary: 127.0.0.1:{new.port}, no longer 127.0.0.1:{old.port}" in caplog.text
            for each in (new, *most):
                each.freeze()
            old.thaw()
            island.start()
            await until(lambda: f"1 of 2 Sentinels name 127.0.0.1:{old.port}" in link.problem)
            for each in (new, *most):
                each.thaw()
            await until(lambda: link.healthy)
            assert asked(new, "ZSCORE", f"{PREFIX}holders", link.holder) is not None
            assert counted.primary_changes == 1


async def test_a_sentinel_that_may_tell_only_the_primary_counts(watched: Topology) -> None:
    """Its user may ask for nothing else, so there are as many as the address names."""
    for each in watched.others:
        asked(each, "ACL", "SETUSER", "app", "on", ">secret", "-@all", "+hello", "+sentinel|get-master-addr-by-name")
    async with linked(f"{watched.url}?sentinel_username=app&sentinel_password=secret"):
        pass
    one, *_ = watched.others
    lone = f"redis+sentinel://127.0.0.1:{one.port},127.0.0.1:1/{SERVICE}?sentinel_username=app&sentinel_password=secret"
    assert "1 of 2 Sentinels name" in await _why(lone)


async def test_sentinels_that_hang_delay_no_heartbeat(watched: Topology) -> None:
    """However long a connect may take: others would give back what this process holds."""
    later_s = 0.0
    link = RedisLink(
        watched.url,
        SECTION.model_copy(update={"connect_timeout_s": 30.0}),
        "boot",
        clock=lambda: time.monotonic() + later_s,
        heartbeat_s=0.1,
    )

    def seen() -> float:
        return float(asked(watched.servers[0], "ZSCORE", f"{PREFIX}holders", link.holder))

    first, second, _ = watched.others
    await link.start()
    try:
        await until(lambda: link.healthy)
        first.freeze()
        second.freeze()
        for _ in range(2):
            # It asks who the primary is after the next heartbeat.
            later_s += 60
            begun = seen()
            await until(lambda begun=begun: seen() > begun)  # type: ignore[misc]
    finally:
        first.thaw()
        second.thaw()
        await link.aclose()
    assert link.problem == ""


async def test_one_that_says_otherwise_is_outvoted(watched: Topology) -> None:
    """A Sentinel that watches another server by the same name, asked first."""
    with contextlib.ExitStack() as stack:
        other = started(stack)
        liar = started(stack, ("sentinel monitor", f"{SERVICE} 127.0.0.1 {other.port} 2"), sentinel=True)
        url = watched.url.replace("redis+sentinel://", f"redis+sentinel://127.0.0.1:{liar.port},")
        async with linked(url):
            assert asked(other, "EXISTS", f"{PREFIX}holders") == 0


async def test_a_service_that_nobody_knows_is_told(watched: Topology) -> None:
    assert "the Sentinels know no mymaster" in await _why(watched.url.replace(SERVICE, "mymaster"))


async def test_what_is_no_sentinel_is_told(watched: Topology) -> None:
    """The address of the data, where that of Sentinels belongs; and of a server without a cluster, where one belongs."""
    port = watched.servers[0].port
    assert "unknown command" in await _why(f"redis+sentinel://127.0.0.1:{port}/{SERVICE}")
    assert "cluster support disabled" in await _why(f"redis+cluster://127.0.0.1:{port}")


async def test_nobody_answers(watched: Topology) -> None:
    """The reason names the place."""
    del watched
    assert "127.0.0.1:1" in await _why(f"redis+sentinel://127.0.0.1:1/{SERVICE}")


async def test_a_replica_s_own_address_is_told(watched: Topology, caplog: pytest.LogCaptureFixture) -> None:
    """It answers every PING; nothing is lost, as each process goes on with its share."""
    await _why(f"redis://127.0.0.1:{watched.servers[1].port}")
    assert "redis answers READONLY: it is a replica" in caplog.text


async def test_passwords_of_sentinels_and_of_data() -> None:
    """Each its own, and a user without a right to anything beyond what is needed."""
    with contextlib.ExitStack() as stack:
        data = started(stack)
        asked(
            data, "ACL", "SETUSER", "app", "on", ">data-secret", "~{weighbridge}:*", "+@all", "-@admin", "-@dangerous"
        )
        guard = started(stack, ("sentinel monitor", f"{SERVICE} 127.0.0.1 {data.port} 1"), sentinel=True)
        asked(guard, "ACL", "SETUSER", "default", "resetpass", ">sentinel-secret")
        place = f"127.0.0.1:{guard.port}/{SERVICE}"
        async with linked(f"redis+sentinel://app:data-secret@{place}?sentinel_password=sentinel-secret") as link:
            assert await hold(link) == 1
        for wrong in ("", "?sentinel_password=other"):
            problem = await _why(f"redis+sentinel://app:data-secret@{place}{wrong}")
            assert "uthentication" in problem or "WRONGPASS" in problem or "invalid" in problem
            assert "secret" not in problem


async def test_a_cluster_is_asked_for_the_node_of_our_keys(sharded: Topology) -> None:
    """By nodes that have other slots; every script's keys lie in one."""
    async with linked(sharded.url) as link:
        assert await hold(link) == 1
        assert asked(sharded.servers[0], "EXISTS", f"{PREFIX}holders") == 1


async def test_a_node_by_itself_says_that_it_is_one_of_a_cluster(
    sharded: Topology, caplog: pytest.LogCaptureFixture
) -> None:
    await _why(f"redis://127.0.0.1:{sharded.others[0].port}")
    assert "a cluster's address begins with redis+cluster://" in caplog.text


async def test_a_slot_that_moves_is_followed(sharded: Topology) -> None:
    """As when a cluster is given more nodes: its keys go with it, and whoever was connected to the former node finds the new one."""
    old, new = sharded.servers[0], sharded.others[0]
    async with linked(sharded.url, heartbeat_s=0.1) as link:
        await hold(link)
        first = link.holder
        await asyncio.to_thread(_move, sharded, old, new)
        await until(lambda: link.healthy and link.holder != first)
        await hold(link)
        assert asked(new, "EXISTS", f"{PREFIX}holders") == 1
        await asyncio.to_thread(_move, sharded, new, old)
        await until(lambda: link.healthy and asked(old, "EXISTS", f"{PREFIX}holders") == 1)


def _move(sharded: Topology, source: RedisServer, target: RedisServer) -> None:
    """Move the slot of our keys, as `redis-cli --cluster reshard` does."""
    slot = key_slot(PREFIX.encode())
    names = {each.port: asked(each, "CLUSTER", "MYID").decode() for each in (source, target)}
    asked(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[source.port])
    asked(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[target.port])
    while keys := asked(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
        asked(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
    for each in (target, source):
        asked(each, "CLUSTER", "SETSLOT", slot, "NODE", names[target.port])


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, Path]]:
    """Ports of a server and of its Sentinel, that speak TLS with a certificate for 127.0.0.1, and the folder with `one.pem` and `two.pem`."""
    folder = tmp_path_factory.mktemp("authorities")
    for name, authority in (("one", ONE), ("two", TWO)):
        (folder / f"{name}.pem").write_text(authority.certificate)
    (folder / "one.key").write_text(ONE.key)
    tls = (
        ("tls-cert-file", str(folder / "one.pem")),
        ("tls-key-file", str(folder / "one.key")),
        ("tls-ca-cert-file", str(folder / "one.pem")),
        ("tls-auth-clients", "optional"),
        ("tls-replication", "yes"),
    )
    with contextlib.ExitStack() as stack:
        port, guards = quiet_port(), quiet_port()
        try:
            started(stack, *tls, ("tls-port", str(port)))
        except RuntimeError as none:
            pytest.skip(f"this server has no TLS: {str(none)[-200:]}")
        watches = ("sentinel monitor", f"{SERVICE} 127.0.0.1 {port} 1")
        started(stack, *tls, ("tls-port", str(guards)), watches, sentinel=True)
        yield port, guards, folder


async def test_tls_to_a_server_and_to_sentinels(encrypted: tuple[int, int, Path]) -> None:
    """By an authority's file, and with a client's certificate."""
    port, guards, folder = encrypted
    trusted = f"ssl_ca_certs={folder}/one.pem"
    for url in (
        f"rediss://127.0.0.1:{port}/0?{trusted}",
        f"rediss://127.0.0.1:{port}/0?{trusted}&ssl_certfile={folder}/one.pem&ssl_keyfile={folder}/one.key",
        f"rediss+sentinel://127.0.0.1:{guards}/{SERVICE}?{trusted}",
    ):
        async with linked(url, section=_WITHIN) as link:
            await hold(link)


@pytest.mark.parametrize(
    ("host", "query", "says"),
    [
        ("127.0.0.1", "ssl_ca_certs={folder}/two.pem", "CERTIFICATE_VERIFY_FAILED"),
        ("127.0.0.1", "", "CERTIFICATE_VERIFY_FAILED"),
        ("localhost", "ssl_ca_certs={folder}/one.pem", "Hostname mismatch"),
        ("127.0.0.1", "ssl_ca_certs={folder}/none.pem", "No such file"),
    ],
)
async def test_who_cannot_be_proven_is_not_used(
    encrypted: tuple[int, int, Path], host: str, query: str, says: str
) -> None:
    """Another authority, none that this machine trusts, another name, a file that is not there; the same by way of a Sentinel."""
    port, guards, folder = encrypted
    query = query.format(folder=folder)
    assert says in await _why(f"rediss://{host}:{port}/0?{query}")
    assert says in await _why(f"rediss+sentinel://{host}:{guards}/{SERVICE}?{query}")
