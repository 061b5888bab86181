"""Addresses that strangers bring: of Sentinels and clusters, as other programs write them."""

import pytest
from redis.asyncio.connection import parse_url

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
    ("url", "options"),
    [
        # Azure's keys end with =, and have + and / (docmost #512, redis-rb #863); Redis Cloud's and others' have @ (backstage #28603).
        ("rediss://:a+b=@x.redis.cache.windows.net:6380", {"password": "a+b="}),
        ("rediss://default:a%2Fb%23c%25@x.upstash.io", {"username": "default", "password": "a/b#c%"}),
        ("redis://alice:Rukm@ni23@redis-1.example.com:12312", {"username": "alice", "password": "Rukm@ni23"}),
        ("redis://us:er:pw@h", {"username": "us", "password": "er:pw"}),
        # A secret that was written with the newline behind it.
        ("redis://h:6379/3\n", {"host": "h", "db": 3}),
        ("redis://h:6379?db=3", {"db": 3}),
        ("unix:///run/redis.sock?db=2", {"path": "/run/redis.sock", "db": 2}),
        ("unix:///run/redis@1.sock", {"path": "/run/redis@1.sock", "db": 0}),
        ("rediss://:a@h?ssl_ca_certs=/etc/ca@2.pem", {"ssl_ca_certs": "/etc/ca@2.pem"}),
        # Celery's and Heroku's words (celery PR 8113, redash #7200).
        ("rediss://h?ssl_cert_reqs=CERT_NONE", {"ssl_cert_reqs": "none"}),
        (
            "rediss://h?ssl_cert_reqs=None&ssl_check_hostname=False",
            {"ssl_cert_reqs": "none", "ssl_check_hostname": False},
        ),
    ],
)
def test_what_others_write_is_read(url: str, options: dict[str, object]) -> None:
    """As redis-py gets it."""
    address = read_address(url)
    told = parse_url(address.url_of(None))
    assert {name: told[name] for name in options} == options  # type: ignore[literal-required]


def test_a_sentinel_is_asked_for_no_database() -> None:
    """It has none, and would refuse the connection."""
    read = read_address("redis+sentinel://h/limits?db=2")
    assert read.url_of_sentinel(read.nodes[0]) == "redis://h:26379"
    assert read.url_of(Node("d", 6379)) == "redis://d:6379/2"


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
        ("redis+cluster://:hunter2@h1?db=3", "the database 0 alone"),
        ("redis://:hunter2@h1?db=x", "number of a database"),
        ("redis://:hunter2@h1/99999999999", "number of a database"),
        # A password as it is (redis-py #1171); TLS by an option, or options of TLS without it (openFEC #4358, cardboard PR 829).
        ("redis://:hunter2/4@h1:6379/0", "%2F"),
        ("redis://:hunter2#4@h1:6379/0", "%23"),
        ("redis://:p@hunter2/4@h1:6379/0", "%40"),
        ("redis://:hunter2@h1?ssl=true", "TLS is meant by rediss://"),
        ("redis://h1?password=hunter2", "stands before the host"),
        ("redis://:hunter2@h1?ssl_cert_reqs=none", "rediss://"),
        ("rediss://:hunter2@h1?ssl_cert_reqs=hunter2", "none, optional, required"),
        ("rediss://:hunter2@h1?ssl_check_hostname=maybe", "false, true"),
        # Azure's and Upstash's other ones.
        ("x.redis.cache.windows.net:6380,password=hunter2=,ssl=True,abortConnect=False", "rediss://USER:PASSWORD@HOST"),
        ("https://hunter2.upstash.io", "rediss://USER:PASSWORD@HOST"),
        ("redis+cluster://" + ",".join(f"h{each}" for each in range(17)), "at most 16"),
    ],
)
def test_what_is_written_otherwise_is_told(url: str, says: str) -> None:
    """What to write is said, and a password is not."""
    problem = address_problem(url)
    assert problem is not None
    assert says in problem
    assert "hunter2" not in problem
