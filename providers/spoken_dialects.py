"""Dialects of upstreams that know no OpenAI, which somebody else speaks: writing a request, reading its reply."""

from typing import Protocol

import msgspec

from providers.replies_as_written import ReplyReader
from providers.upstream import UpstreamCall


class Asked(msgspec.Struct, frozen=True):
    """A request in another dialect: what is added to the address, the body, and headers beside ours."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class SpokenDialect(Protocol):
    """A dialect that deployments name."""

    def asked(self, call: UpstreamCall, body: bytes) -> Asked:
        """Write the request, which is `body` in chat's dialect. Raises an UpstreamError."""
        ...

    def reader(self, call: UpstreamCall) -> ReplyReader:
        """Return the reader of the call's reply. Raises an UpstreamError."""
        ...
