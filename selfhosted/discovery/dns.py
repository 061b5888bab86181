"""Replicas behind one name, such as a headless Service's: every address that it resolves to is one.

The system's resolver answers in a thread. One that hangs is asked again only when it answered, so that threads do not
pile up behind it. A name that does not exist is an empty answer: a headless Service without ready pods has no record.
Resolvers that give a part of the addresses in turn (more than fit into a UDP answer) are of no use here.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from selfhosted.config import DnsConfig
from selfhosted.discovery.source import LOOK_S, MOST_REPLICAS, DiscoveredReplica, SourceFailed, SourceResult
from selfhosted.registry.origin import origin
from selfhosted.replica import Source as SourceName

Resolve = Callable[[str, int], Awaitable[Sequence[tuple[Any, ...]]]]
"""Host and port → what `getaddrinfo` gives. Raises OSError."""

_NO_SUCH: Final = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)


async def system_resolver(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """What this machine's own resolver says."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class DnsSource:
    """Asks one name again and again."""

    name: Final[SourceName] = "dns"

    def __init__(self, config: DnsConfig, resolve: Resolve = system_resolver, *, patience_s: float = LOOK_S) -> None:
        self.every_s = config.every_s
        self._config = config
        self._resolve = resolve
        self._patience_s = patience_s
        self._asked: asyncio.Future[Sequence[tuple[Any, ...]]] | None = None

    async def fetch(self) -> SourceResult:
        config = self._config
        if self._asked is None:
            self._asked = asyncio.ensure_future(self._resolve(config.host, config.port))
            # Nobody may wait for it any more when it fails.
            self._asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        asked = self._asked
        try:
            async with asyncio.timeout(self._patience_s):
                answer = await asyncio.shield(asked)
        except TimeoutError as error:
            raise SourceFailed(f"{config.host}: the resolver does not answer") from error
        except socket.gaierror as error:
            if error.errno in _NO_SUCH:
                return SourceResult()
            raise SourceFailed(f"{config.host}: {error.strerror or 'cannot be resolved'}") from error
        except (OSError, UnicodeError) as error:
            raise SourceFailed(f"{config.host} cannot be resolved ({type(error).__name__})") from error
        finally:
            if asked.done():
                self._asked = None
        return found_in(config, answer)


def found_in(config: DnsConfig, answer: Sequence[tuple[Any, ...]]) -> SourceResult:
    """Each address once, however often and in what order it was told."""
    addresses: set[IPv4Address | IPv6Address] = set()
    unusable: set[str] = set()
    for *_, told in answer[: 4 * MOST_REPLICAS]:
        host = str(told[0])
        try:
            # An address with a zone means something on one machine only.
            address = ip_address(host)
            usable = "%" not in host and not address.is_unspecified and not address.is_multicast
        except ValueError:
            usable = False
        if usable:
            addresses.add(address)
        else:
            unusable.add(f"{config.host} resolves to {host[:64]}, which no engine can have")
    ordered = sorted(addresses, key=lambda each: (each.version, each))
    return SourceResult(
        replicas=tuple(
            DiscoveredReplica(name=name_of(each), url=origin(config.scheme, each, config.port))
            for each in ordered[:MOST_REPLICAS]
        ),
        unusable=tuple(sorted(unusable)[:10]),
    )


def name_of(address: IPv4Address | IPv6Address) -> str:
    """The same address has the same name in every process: 10.0.0.7, or fd00-0000-…-0007."""
    return address.exploded.replace(":", "-")
