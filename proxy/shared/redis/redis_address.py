"""Addresses of Redis: one server, the Sentinels that watch a primary and its replicas, or a cluster's nodes."""

import re
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import parse_qs, quote, urlencode

import msgspec

Kind = Literal["server", "sentinel", "cluster"]

_KINDS: Final[Mapping[str, Kind]] = {
    "redis": "server",
    "rediss": "server",
    "unix": "server",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
_MEANT: Final[Mapping[str, str]] = {
    # Celery; lettuce, Spring and asynq; what people guess.
    "sentinel": "redis+sentinel",
    "redis-sentinel": "redis+sentinel",
    "rediss-sentinel": "rediss+sentinel",
    "redis-cluster": "redis+cluster",
    "rediss-cluster": "rediss+cluster",
    "valkey": "redis",
    "valkeys": "rediss",
}
"""Beginnings that others' programs take."""
_PORTS: Final[Mapping[Kind, int]] = {"server": 6379, "sentinel": 26_379, "cluster": 6379}
FILES: Final = frozenset({"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"})
"""Options of an address that name files."""
_OF_SENTINELS: Final = frozenset({"sentinel_username", "sentinel_password"})
_OPTIONS: Final = FILES | {"db", "ssl_cert_reqs", "ssl_check_hostname"}
_VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    # Celery has the second names.
    "ssl_cert_reqs": {name: proof for proof in ("none", "optional", "required") for name in (proof, f"cert_{proof}")},
    "ssl_check_hostname": {"true": "true", "1": "true", "yes": "true", "false": "false", "0": "false", "no": "false"},
}
"""What options may say, in lower case, and what redis-py is told."""
_WRITTEN_OTHERWISE: Final[Mapping[str, str]] = {
    "ssl": "has no option ssl: TLS is meant by rediss://",
    "tls": "has no option tls: TLS is meant by rediss://",
    "password": "has no option password: USER:PASSWORD@ stands before the host",
    "username": "has no option username: USER:PASSWORD@ stands before the host",
}
_SHAPE: Final = re.compile(
    r"(?P<scheme>[a-z+-]+)://(?:(?P<user>[^/?#]*)@)?(?P<nodes>[^/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?",
    re.IGNORECASE,
)
# An @ behind the hosts, unless an option has it.
_RAW_PASSWORD: Final = re.compile(r"[a-z+-]+://[^/?#]*(?!\?[a-z_]+=)[/?#](?:(?!\?[a-z_]+=)[^@])*@", re.IGNORECASE)
_ESCAPED: Final = "has an @ behind / ? or #: in a password / ? # @ % are written %2F %3F %23 %40 %25"
_NODE: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::(?P<port>\d{1,5}))?")
_SERVICE: Final = re.compile(r"[A-Za-z0-9._-]+")
_NUMBER: Final = re.compile(r"[0-9]{1,4}")
_MOST_PORT: Final = 65_535
MOST_NODES: Final = 16
_NOT_AN_ADDRESS: Final = (
    "must be an address such as redis://HOST:6379/0, rediss://USER:PASSWORD@HOST:6379/0 (TLS), unix:///PATH, "
    "redis+sentinel://HOST:26379,HOST:26379/SERVICE/0 or redis+cluster://HOST:6379,HOST:6379"
)


class Node(msgspec.Struct, frozen=True):
    """A host and a port, as one connects to them."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RedisAddress(msgspec.Struct, frozen=True):
    """An address that was read; what it holds may be a password, so only `place` is shown."""

    kind: Kind
    scheme: str
    """`redis`, `rediss` or `unix`."""
    user: str
    nodes: tuple[Node, ...]
    path: str
    """A socket's."""
    database: int
    """By the path, or the option `db`."""
    service: str
    """The name under which Sentinels know the primary."""
    options: tuple[tuple[str, str], ...]
    sentinel_user: str

    @property
    def place(self) -> str:
        """Where it leads, without user and password."""
        if self.scheme == "unix":
            return self.path
        nodes = ",".join(map(str, self.nodes))
        return f"{self.service} by {nodes}" if self.service else nodes

    def url_of(self, node: Node | None) -> str:
        """Return redis-py's address of a server that holds data; without a node that of the one server."""
        user = f"{self.user}@" if self.user else ""
        query = f"?{urlencode(self.options)}" if self.options else ""
        if self.scheme == "unix":
            return f"unix://{user}{self.path}?db={self.database}"
        return f"{self.scheme}://{user}{node or self.nodes[0]}/{self.database}{query}"

    def url_of_sentinel(self, node: Node) -> str:
        """Return redis-py's address of a Sentinel, which has no databases, and a password of its own."""
        user = f"{self.sentinel_user}@" if self.sentinel_user else ""
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"{self.scheme}://{user}{node}{query}"


def read_address(url: str) -> RedisAddress:
    """Read an address. Raises ValueError, which tells the problem and never repeats the address, as it may hold a password."""
    found = _SHAPE.fullmatch(url.strip())
    is_raw = _RAW_PASSWORD.match(url) is not None
    if found is None:
        raise ValueError(_ESCAPED if is_raw else _NOT_AN_ADDRESS)
    scheme = found["scheme"].lower()
    kind = _KINDS.get(scheme)
    if kind is None:
        meant = _MEANT.get(scheme)
        raise ValueError(f"begins with {scheme}://, which is written {meant}:// here" if meant else _NOT_AN_ADDRESS)
    base, path = scheme.partition("+")[0], found["path"] or ""
    if is_raw and base != "unix":
        raise ValueError(_ESCAPED)
    options = _options(found["query"] or "", kind, has_tls=base == "rediss")
    nodes = () if base == "unix" else _nodes(found["nodes"], kind)
    if base == "unix" and (found["nodes"] or path in {"", "/"}):
        raise ValueError(_NOT_AN_ADDRESS)
    service, parts = ("", []) if base == "unix" else _path(path, kind)
    database = _database([options.pop("db")] if "db" in options else parts, kind)
    return RedisAddress(
        kind=kind,
        scheme=base,
        user=found["user"] or "",
        nodes=nodes,
        path=path if base == "unix" else "",
        database=database,
        service=service,
        options=tuple(sorted((name, told) for name, told in options.items() if name not in _OF_SENTINELS)),
        sentinel_user=_sentinel_user(options),
    )


def address_problem(url: str) -> str | None:
    """Return the problem with an address, or None. Never repeats the address, which may hold a password."""
    try:
        read_address(url)
    except ValueError as problem:
        return str(problem)
    return None


def _options(query: str, kind: Kind, *, has_tls: bool) -> dict[str, str]:
    allowed = _OPTIONS | _OF_SENTINELS if kind == "sentinel" else _OPTIONS
    told = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    for name in told:
        if name in _WRITTEN_OTHERWISE:
            raise ValueError(_WRITTEN_OTHERWISE[name])
        if name not in allowed:
            raise ValueError(f"may have these options: {', '.join(sorted(allowed))}")
        if name.startswith("ssl_") and not has_tls:
            raise ValueError(f"has {name}, which means something with TLS alone: rediss://")
    for name, values in _VALUES.items():
        if name in told:
            value = values.get(told[name].lower())
            if value is None:
                raise ValueError(f"has {name}, which is one of {', '.join(sorted(set(values.values())))}")
            told[name] = value
    return told


def _sentinel_user(options: Mapping[str, str]) -> str:
    password = options.get("sentinel_password", "")
    return f"{quote(options.get('sentinel_username', ''), safe='')}:{quote(password, safe='')}" if password else ""


def _nodes(text: str, kind: Kind) -> tuple[Node, ...]:
    parts = text.split(",")
    if kind == "server" and len(parts) > 1:
        raise ValueError(
            "has several hosts: Sentinels are written redis+sentinel://HOST,HOST/SERVICE, a cluster redis+cluster://HOST,HOST"
        )
    if ";" in text:
        raise ValueError("has its hosts separated by commas, and what all have in common once")
    if len(parts) > MOST_NODES:
        raise ValueError(f"has at most {MOST_NODES} hosts")
    return tuple(_node(part, _PORTS[kind]) for part in parts)


def _node(text: str, usual: int) -> Node:
    found = _NODE.fullmatch(text)
    port = usual if found is None or found["port"] is None else int(found["port"])
    if found is None or not 0 < port <= _MOST_PORT:
        raise ValueError(_NOT_AN_ADDRESS)
    return Node(found["host"].strip("[]"), port)


def _path(path: str, kind: Kind) -> tuple[str, list[str]]:
    """Return the service that a path names, and what stands behind it."""
    parts = [part for part in path.split("/") if part]
    service = ""
    if kind == "sentinel":
        if not parts or parts[0].isdecimal() or _SERVICE.fullmatch(parts[0]) is None:
            raise ValueError("must name what the Sentinels watch behind their hosts, such as /mymaster or /mymaster/0")
        service = parts.pop(0)
    return service, parts


def _database(parts: list[str], kind: Kind) -> int:
    if len(parts) > 1 or not all(_NUMBER.fullmatch(part) for part in parts):
        raise ValueError("must end with the number of a database, such as /0, or with none")
    database = int(parts[0]) if parts else 0
    if kind == "cluster" and database:
        raise ValueError("has the database 0 alone: a cluster has no others")
    return database
