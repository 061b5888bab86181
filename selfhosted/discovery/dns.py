"""Replicas behind one DNS name, such as a headless Service's: each address that it resolves to is one.

The system's resolver answers in a thread. A hanging look-up is not repeated before it has answered, so that threads do
not pile up behind it. A name that does not exist is an empty answer: a headless Service without ready pods has no
record. Resolvers that rotate through a part of the addresses (more than fit into a UDP answer) are of no use here.
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
"""Resolver: takes a host and a port, and returns what `getaddrinfo` does. Raises OSError."""

_NO_SUCH: Final = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)


async def system_resolver(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """Resolve a host with the system's resolver. Raises OSError."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class DnsSource:
    """The replicas behind a DNS name."""

    name: Final[SourceName] = "dns"

    def __init__(self, config: DnsConfig, resolve: Resolve = system_resolver, *, patience_s: float = LOOK_S) -> None:
        self.every_s = config.every_s
        self._config = config
        self._resolve = resolve
        self._patience_s = patience_s
        self._lookup: asyncio.Future[Sequence[tuple[Any, ...]]] | None = None

    async def fetch(self) -> SourceResult:
        config = self._config
        if self._lookup is None:
            self._lookup = asyncio.ensure_future(self._resolve(config.host, config.port))
            # Retrieves the exception, as nothing may await the future any more when it fails.
            self._lookup.add_done_callback(lambda done: done.cancelled() or done.exception())
        asked = self._lookup
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
                self._lookup = None
        return found_in(config, answer)


def found_in(config: DnsConfig, answer: Sequence[tuple[Any, ...]]) -> SourceResult:
    """Return the replicas in a resolver's answer, each address once; addresses that no engine can have are reported as
    unusable.
    """
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
    """Return the replica name of an address, the same in every process: 10.0.0.7, or fd00-0000-…-0007."""
    return address.exploded.replace(":", "-")
