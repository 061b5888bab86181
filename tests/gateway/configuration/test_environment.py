"""The process's environment: what is refused, and which variable comes first."""

import pytest

from gateway.configuration.environment import Environment, read_environment
from gateway.configuration.file import ConfigError
from proxy.shared.redis.redis_config import RedisSection


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "WEIGHBRIDGE_PROT",
            "1",
            "WEIGHBRIDGE_PROT: is not known; did you mean WEIGHBRIDGE_PORT? Allowed: WEIGHBRIDGE_C",
        ),
        ("WEIGHBRIDGE_ZZZ", "1", "WEIGHBRIDGE_ZZZ: is not known. Allowed: "),
        ("WEIGHBRIDGE_WORKERS", "many", "WEIGHBRIDGE_WORKERS: must be a whole number"),
        ("WEIGHBRIDGE_PORT", "70000", "WEIGHBRIDGE_PORT: must be at most 65535"),
        ("DATABASE_URL", "mysql://a:hunter2@b/c", "DATABASE_URL: must be sqlite:///FILE"),
        (
            "WEIGHBRIDGE_DATABASE_URL",
            "postgresql://a@b:hunter2/c",
            "WEIGHBRIDGE_DATABASE_URL: what follows a host of the",
        ),
        ("DATABASE_URL", "postgresql://a:hunter2@b/c?sslmod=require", "DATABASE_URL: unknown parameter `sslmod`"),
        (
            "DATABASE_URL",
            "postgresql://a:hunter2@b/c?sslmode=verify-full&sslrootcert=/not/there.pem",
            "DATABASE_URL: the file that `sslrootcert` of",
        ),
        ("WEIGHBRIDGE_REDIS_URL", "http://a:hunter2@b", "WEIGHBRIDGE_REDIS_URL: must be an address such as redis://"),
        ("REDIS_URL", "http://a:hunter2@b", "REDIS_URL: must be an address such as redis://"),
        ("weighbridge_database_url", "mysql://a:hunter2@b/c", "WEIGHBRIDGE_DATABASE_URL: must be sqlite:///FILE"),
        ("HTTPS_PROXY", "socks5://a:hunter2@b", "HTTPS_PROXY: it must be http://[USER:PASSWORD@]HOST[:PORT]"),
        ("WEIGHBRIDGE_HTTPS_PROXY", "http://b", "WEIGHBRIDGE_HTTPS_PROXY: is not known"),
        ("WEIGHBRIDGE_PEPPER", "hunter2", "WEIGHBRIDGE_PEPPER: must have at least 32 characters"),
    ],
)
def test_a_bad_environment_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    """A misspelt or impossible variable stops the start, names what is allowed and repeats no value."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        read_environment()
    assert str(refused.value).startswith(f"environment: {message}")
    assert "hunter2" not in str(refused.value)


def test_the_database_has_a_default_and_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite in the data directory, else DATABASE_URL, else our own variable."""
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", "/data")
    assert read_environment().database() == "sqlite+aiosqlite:////data/weighbridge.sqlite"
    monkeypatch.setenv("DATABASE_URL", "postgresql://a:hunter2@db/x")
    assert read_environment().database() == "postgresql://a:hunter2@db/x"
    assert "hunter2" not in repr(read_environment())
    monkeypatch.setenv("WEIGHBRIDGE_DATABASE_URL", "postgresql://b@db/y")
    assert read_environment().database() == "postgresql://b@db/y"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://a@one.example.com:5432,two.example.com:5433/x?target_session_attrs=read-write",
        "postgresql+psycopg2://a@db/x",
        "postgres://a@/x?host=/cloudsql/project:region:db",
        "postgresql://a@db/x?sslmode=verify-full&sslrootcert=system",
        "sqlite:////data/x.sqlite",
        "sqlite://",
    ],
)
def test_addresses_as_everybody_has_them_are_taken(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """What the database's driver can read is no fault of the environment."""
    monkeypatch.setenv("DATABASE_URL", url)
    assert read_environment().database() == url


def test_redis_is_optional_and_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """None, else the secret that the file names, else REDIS_URL, else our own variable."""
    section = RedisSection(url="env:GATE_REDIS")
    monkeypatch.setenv("GATE_REDIS", "redis://:hunter2@file")
    assert read_environment().redis(RedisSection()) is None
    assert read_environment().redis(section) == "redis://:hunter2@file"
    monkeypatch.setenv("REDIS_URL", "redis://:hunter2@plain")
    assert read_environment().redis(section) == "redis://:hunter2@plain"
    monkeypatch.setenv("WEIGHBRIDGE_REDIS_URL", "redis://:hunter2@ours")
    assert read_environment().redis(section) == "redis://:hunter2@ours"
    assert "hunter2" not in repr(read_environment())


def test_a_child_is_told_what_the_command_line_said() -> None:
    """Overrides become variables again, for workers that read the same file."""
    environment = Environment().model_copy(update={"port": 0, "workers": 2})
    assert environment.variables() == {"WEIGHBRIDGE_PORT": "0", "WEIGHBRIDGE_WORKERS": "2"}
