"""Authenticators: who a caller without a key of the gateway is."""

import functools
from collections.abc import Sequence
from types import MappingProxyType

import msgspec

from accounts.caller import Caller
from accounts.named_keys import NamedKeys
from gateway.plugins.calls import Calls, NoAnswer
from proxy.errors import PluginUnavailable
from weighbridge.plugins import Authenticator, Identity
from weighbridge.plugins.checking import checked_identity


class Authenticating(msgspec.Struct, frozen=True):
    """One authenticator, the headers that it is given, and the organisation whose keys it may name."""

    authenticator: Authenticator
    calls: Calls
    headers: frozenset[bytes]
    organisation_id: str


class OutsideCallers:
    """The authenticators in the order of the configuration. The first that knows a caller decides."""

    def __init__(self, authenticators: Sequence[Authenticating], keys: NamedKeys) -> None:
        self._authenticators = authenticators
        self._keys = keys

    async def caller(self, headers: Sequence[tuple[bytes, bytes]]) -> Caller | None:
        """Return the caller; None where nobody knows it. Raises PluginUnavailable where one that had to be asked gave no answer:
        whom the next one would take it for is then no matter. Raises an accounts error for a key that does not work.
        """
        for each in self._authenticators:
            try:
                identity = await each.calls.ask(functools.partial(_known, each, headers))
            except NoAnswer as none:
                raise PluginUnavailable(
                    f"Who you are cannot be told right now, as {none}. Try again shortly.", retry_after_s=1.0
                ) from none
            if identity is not None:
                return await self._keys.caller(each.organisation_id, identity.team_id, identity.key_name)
        return None


async def _known(each: Authenticating, headers: Sequence[tuple[bytes, bytes]]) -> Identity | None:
    given: dict[str, str] = {}
    for name, value in headers:
        if name in each.headers:
            # Of a repeated header the first counts, as everywhere.
            given.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return checked_identity(await each.authenticator.caller(MappingProxyType(given)))
