"""The `redis` section, and addresses."""

import pytest
from pydantic import ValidationError
from redis.crc import key_slot

from proxy.shared.redis.redis_address import address_problem
from proxy.shared.redis.redis_config import RedisSection


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379",
        "redis://localhost/0",
        "redis://user:secret@[::1]:7000/15",
        "rediss://:secret@redis.example.com:6380/1?ssl_ca_certs=/etc/ca.pem",
        "unix:///run/redis.sock?db=2",
    ],
)
def test_addresses_of_one_server_are_taken(url: str) -> None:
    """Plain, TLS and a socket of this machine, with a password and a database."""
    assert address_problem(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis",
        "http://127.0.0.1:6379",
        "redis://",
        "redis://host:0",
        "redis://host:99999",
        "redis://:hunter2@host:port",
        "redis://:hunter2@host/name",
        "redis://:hunter2@host/0?socket_timeout=60",
        "redis://:hunter2#@host/0",
        "unix://",
    ],
)
def test_other_addresses_are_refused_without_being_shown(url: str) -> None:
    """What is wrong is told, and a password in it is not."""
    said = address_problem(url)
    assert said
    assert "hunter2" not in said


@pytest.mark.parametrize("prefix", ["weighbridge:", "{}", "{ }:", "}a{", "{}{a}:", "x{}y}:"])
def test_a_prefix_has_a_part_in_braces(prefix: str) -> None:
    """The message shows one."""
    with pytest.raises(ValidationError, match=r"such as \{weighbridge\}:"):
        RedisSection(prefix=prefix)


@pytest.mark.parametrize("prefix", ["{weighbridge}:", "eu:{a}:", "}{a}:", "{{a}}:", "{a}{}:", "{a|b~}"])
def test_a_prefix_keeps_its_keys_in_one_slot(prefix: str) -> None:
    """Whatever comes behind it."""
    RedisSection(prefix=prefix)
    assert key_slot(f"{prefix}holders".encode()) == key_slot(f"{prefix}queue:{{b}}".encode())


def test_the_defaults_leave_room_between_slow_and_late() -> None:
    """A slow reply can still be used."""
    section = RedisSection()
    assert section.slow_s < section.reply_s < section.timeout_s


@pytest.mark.parametrize("wrong", [{"slow_s": 0.09}, {"prefix": "weighbridge:"}, {"url": "redis://host"}, {"extra": 1}])
def test_what_could_not_work_is_refused(wrong: dict[str, object]) -> None:
    """Slow beyond late, keys that a cluster would scatter, and an address in the file are refused."""
    with pytest.raises(ValidationError):
        RedisSection.model_validate(wrong)
