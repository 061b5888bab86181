"""The address of the database: what it may be, and what is wrong with one.

PostgreSQL's is libpq's: `postgresql://USER:PASSWORD@HOST1:5432,HOST2:5432/NAME?sslmode=verify-full&sslrootcert=ca.pem`. Its
parameters are those of `PARAMETERS`; others are refused by name.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

_CONNECT_S: Final = 5.0
_STATEMENT_S: Final = 60.0
_MOST_PORT: Final = 65_535
_MOST_PORT_DIGITS: Final = 5
_MOST_S: Final = 3_600

DatabaseKind = Literal["sqlite", "postgresql"]
_KINDS: Final[Mapping[str, DatabaseKind]] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}
_Use = Literal["driver", "session", "here", "ignored"]

PARAMETERS: Final[Mapping[str, _Use]] = {
    # Read by the driver, which knows libpq's meaning.
    "host": "driver",
    "port": "driver",
    "user": "driver",
    "password": "driver",
    "dbname": "driver",
    "database": "driver",
    "passfile": "driver",
    "service": "driver",
    "sslmode": "driver",
    "sslcert": "driver",
    "sslkey": "driver",
    "sslrootcert": "driver",
    "sslcrl": "driver",
    "sslpassword": "driver",
    "sslnegotiation": "driver",
    "ssl_min_protocol_version": "driver",
    "ssl_max_protocol_version": "driver",
    "target_session_attrs": "driver",
    "krbsrvname": "driver",
    "gsslib": "driver",
    # Settings of the session.
    "application_name": "session",
    "options": "session",
    "search_path": "session",
    "client_encoding": "session",
    "statement_timeout": "session",
    "lock_timeout": "session",
    "idle_in_transaction_session_timeout": "session",
    # Read here.
    "connect_timeout": "here",
    "command_timeout": "here",
    "ssl": "here",
    "channel_binding": "here",
    "load_balance_hosts": "here",
    # What others' tools add, and what needs no setting here: poolers are recognized, and the network's own time-outs serve.
    "fallback_application_name": "ignored",
    "sslcompression": "ignored",
    "sslsni": "ignored",
    "gssencmode": "ignored",
    "keepalives": "ignored",
    "keepalives_idle": "ignored",
    "keepalives_interval": "ignored",
    "keepalives_count": "ignored",
    "tcp_user_timeout": "ignored",
    "pgbouncer": "ignored",
    "prepared_statement_cache_size": "ignored",
    "statement_cache_size": "ignored",
    "prepare_threshold": "ignored",
}
"""All parameters of an address: libpq's, and those that SQLAlchemy, Prisma and asyncpg have taught people to add."""

_LIBPQ_SSL: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SSL_WORDS: Final = {"true": "require", "1": "require", "false": "disable", "0": "disable"}
FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
"""Parameters that name files."""
_HOME_ROOT: Final = Path("~/.postgresql/root.crt")
_WRITABLE: Final = "read-write"


class UnknownDatabase(ValueError):
    """An address of an unsupported database, or one that cannot be read."""


class PostgresAddress(msgspec.Struct, frozen=True):
    """A PostgreSQL address, read."""

    dsn: str
    """The address as the driver takes it; with the password."""
    dsns: tuple[str, ...]
    """The same of each host alone."""
    connect: Mapping[str, Any]
    """What else the driver is given for each connection."""
    host: str
    database: str


def check_address(url: str) -> None:
    """Check the address, and that the files it names are there. Raises UnknownDatabase with what is wrong and what to do."""
    if database_kind(url) == "sqlite":
        return
    address = read_address(url)
    given = dict(parse_qsl(urlsplit(address.dsn).query))
    files = {name: given[name] for name in FILES if name in given}
    mode = given.get("sslmode", "")
    if mode.startswith("verify-") and "sslrootcert" not in files and not _HOME_ROOT.expanduser().exists():
        raise UnknownDatabase(
            f"`sslmode={mode}` needs `sslrootcert=FILE`, or `sslrootcert=system` for the certificates of this machine"
        )
    for name, file in files.items():
        if not Path(file).is_file():
            raise UnknownDatabase(f"the file that `{name}` of the database's address names is not there: {file}")


def database_kind(url: str) -> DatabaseKind:
    """Return which database the address is of. SQLAlchemy's word for a driver, as in `postgresql+psycopg2`, says nothing here.

    Raises UnknownDatabase.
    """
    scheme, separator, rest = url.partition("://")
    kind = _KINDS.get(scheme.lower().partition("+")[0]) if separator else None
    if url.strip("'\" \t\r\n") != url:
        raise UnknownDatabase("stands in quotation marks or spaces: `docker --env-file` keeps them, so leave them out")
    if kind is None or (kind == "sqlite" and rest and not rest.startswith(("/", "?"))):
        raise UnknownDatabase(
            "must be sqlite:///FILE (four slashes for an absolute path) or postgresql://USER:PASSWORD@HOST:5432/NAME"
        )
    return kind


def read_address(url: str) -> PostgresAddress:
    """Return the address. Raises UnknownDatabase with what is wrong and what to do; never with the password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UnknownDatabase("an IPv6 address of the database's server is written [::1]:5432") from None
    # Its rest would be taken for a database or a parameter, and said.
    is_cut = ":" in parts.netloc and "@" not in parts.netloc and "@" in parts.path + parts.query
    if parts.fragment or is_cut:
        raise UnknownDatabase(
            "a `/`, `?`, `#` or `@` within the password of the database's address is written %2F, %3F, %23 or %40"
        )
    try:
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise UnknownDatabase("the parameters of the database's address are written `name=value&name=value`") from None
    if unknown := sorted(given.keys() - PARAMETERS.keys()):
        raise UnknownDatabase(f"unknown parameter `{unknown[0][:64]}` of the database's address; see docs/databases.md")
    hosts = parse_hosts(parts.netloc, [value for name, value in parse_qsl(parts.query) if name == "host"], given)
    mode = given.get("sslmode") or _SSL_WORDS.get(given.get("ssl", ""), given.get("ssl", ""))
    if mode and mode not in _LIBPQ_SSL:
        raise UnknownDatabase(f"`sslmode` of the database's address is one of {', '.join(_LIBPQ_SSL)}")
    if given.get("channel_binding") == "require":
        raise UnknownDatabase(
            "`channel_binding=require` is not supported by this driver: leave it out, and let "
            "`sslmode=verify-full` prove who the server is"
        )
    if given.get("load_balance_hosts", "disable") != "disable":
        raise UnknownDatabase(
            "`load_balance_hosts` is not supported: of several hosts the first that can write is used"
        )
    kept = {
        name: value for name, value in given.items() if PARAMETERS[name] == "driver" and name not in {"host", "port"}
    }
    if mode:
        kept["sslmode"] = mode
    connect: dict[str, Any] = {
        "timeout": _seconds(given, "connect_timeout", _CONNECT_S),
        "command_timeout": _seconds(given, "command_timeout", _STATEMENT_S),
        "server_settings": {
            "application_name": "weighbridge",
            **{name: value for name, value in given.items() if PARAMETERS[name] == "session"},
        },
        "target_session_attrs": kept.pop("target_session_attrs", _WRITABLE),
        # SQLAlchemy keeps its own statements.
        "statement_cache_size": 0,
    }
    if kept.get("sslrootcert") == "system":
        # libpq's word for the machine's own certificates, which it takes together with verify-full alone.
        kept.pop("sslrootcert")
        kept.pop("sslmode", None)
        connect["ssl"] = ssl.create_default_context()
    user, at, _ = parts.netloc.rpartition("@")
    query = f"?{urlencode(kept, quote_via=quote)}" if kept else ""
    before, behind = f"postgresql://{user}{at}", f"{parts.path}{query}"
    return PostgresAddress(
        dsn=f"{before}{','.join(hosts)}{behind}",
        dsns=tuple(f"{before}{host}{behind}" for host in hosts),
        connect=connect,
        host=",".join(hosts),
        database=parts.path.removeprefix("/") or given.get("dbname", given.get("database", "")),
    )


def parse_hosts(netloc: str, more: list[str], given: Mapping[str, str]) -> list[str]:
    """Return the hosts, each with its port, from where they stand: before the path, or as parameters `host` and `port`."""
    written = netloc.rpartition("@")[2]
    hosts = [each for each in written.split(",") if each] or [each for value in more for each in value.split(",")]
    ports = [each for each in given.get("port", "").split(",") if each]
    found = []
    for place, host in enumerate(hosts):
        # A socket's folder may have colons of its own, and an IPv6 address has them within brackets.
        is_port_told = not host.startswith("/") and ":" in host.rpartition("]")[2]
        name, _, port = host.rpartition(":") if is_port_told else (host, "", "")
        port = port or (ports[place] if place < len(ports) else ports[0] if len(ports) == 1 else "")
        if port and not (
            port.isascii() and port.isdecimal() and len(port) <= _MOST_PORT_DIGITS and 0 < int(port) <= _MOST_PORT
        ):
            raise UnknownDatabase(
                "what follows a host of the database's address is no port; several hosts are written "
                "`HOST1:5432,HOST2:5432`, and a `/` within the password %2F"
            )
        bare = quote(name, safe="") if name.startswith("/") else name
        found.append(f"{bare}:{port}" if port else bare)
    return found


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    value = given.get(name, "")
    if not value:
        return default
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _MOST_S:
        raise UnknownDatabase(f"`{name}` of the database's address is a number of seconds up to 3,600")
    # libpq's 0 is no limit; a minute is as good as none here.
    return found or _STATEMENT_S
