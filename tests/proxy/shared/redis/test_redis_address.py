"""Addresses that strangers bring: of Sentinels and clusters, as other programs write them."""

import pytest

from proxy.shared.redis.redis_address import Node, address_problem, read_address


def test_sentinels_have_a_service_and_passwords_of_their_own() -> None:
    """As redis-sentinel-url writes them; who holds the data is asked with the user before the hosts."""
    read = read_address(
        "rediss+sentinel://app:p%40ss@s1,s2:26380,[::1]:26381/limits/2?sentinel_password=w%2Ford&ssl_ca_certs=/ca.pem"
    )
    assert read.nodes == (Node("s1", 26_379), Node("s2", 26_380), Node("::1", 26_381))
    assert read.place == "limits by s1:26379,s2:26380,[::1]:26381"
    assert read.url_of(Node("fe80::1", 6379)) == "rediss://app:p%40ss@[fe80::1]:6379/2?ssl_ca_certs=%2Fca.pem"
    assert read.url_of_sentinel(read.nodes[0]) == "rediss://:w%2Ford@s1:26379?ssl_ca_certs=%2Fca.pem"


def test_a_cluster_has_nodes() -> None:
    """One name is enough, such as the configuration endpoint of a managed one."""
    read = read_address("rediss+cluster://clustercfg.limits.use1.cache.amazonaws.com:6379")
    assert read.place == "clustercfg.limits.use1.cache.amazonaws.com:6379"
    assert read.url_of(Node("10.0.0.7", 6379)) == "rediss://10.0.0.7:6379/0"
    assert read_address("redis+cluster://a,b:7001/0").nodes == (Node("a", 6379), Node("b", 7001))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        # Celery's; lettuce's, Spring's and asynq's; valkey-py's.
        ("sentinel://:hunter2@h1:26379;sentinel://:hunter2@h2:26379", "redis+sentinel://"),
        ("redis-sentinel://:hunter2@h1:26379,h2:26379/0#mymaster", "must be an address"),
        ("redis-sentinel://:hunter2@h1:26379,h2:26379?master=mymaster", "redis+sentinel://"),
        ("redis-cluster://:hunter2@h1:7000,h2:7000", "redis+cluster://"),
        ("valkey://:hunter2@h1:6379/0", "redis://"),
        ("valkeys://:hunter2@h1:6379/0", "rediss://"),
        # A list of hosts where one belongs, as Envoy and ioredis have it.
        ("redis://:hunter2@h1:6379,h2:6379", "redis+cluster://HOST,HOST"),
        ("redis+sentinel://:hunter2@h1;h2/mymaster", "commas"),
        ("redis+sentinel://:hunter2@h1,h2", "must name what the Sentinels watch"),
        ("redis+sentinel://:hunter2@h1,h2/0", "must name what the Sentinels watch"),
        ("redis+sentinel://:hunter2@h1,h2/my master", "must name what the Sentinels watch"),
        ("redis+sentinel://:hunter2@h1/mymaster/zero", "number of a database"),
        ("redis+cluster://:hunter2@h1/1", "the database 0 alone"),
        ("redis+cluster://:hunter2@h1,,h2", "must be an address"),
        ("redis+cluster://:hunter2@h1:0", "must be an address"),
        ("redis+cluster://:hunter2@h1:70000", "must be an address"),
        ("redis+cluster://:hunter2@h1?sentinel_password=hunter2", "may have these options"),
        ("redis+cluster://" + ",".join(f"h{each}" for each in range(17)), "at most 16"),
    ],
)
def test_what_is_written_otherwise_is_told(url: str, says: str) -> None:
    """What to write is said, and a password is not."""
    problem = address_problem(url)
    assert problem is not None
    assert says in problem
    assert "hunter2" not in problem
