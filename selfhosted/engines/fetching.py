"""The interfaces for fetching an engine's small page."""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

Failure = Literal["unreachable", "slow", "too_large", "encoded", "cut"]


EngineKey = Callable[[], str | None]
"""Function that returns the engines' key as it is now; None where they have none."""


def no_key() -> None:
    """Return None, as for engines that ask for no key."""
    return


class Fetched(msgspec.Struct, frozen=True):
    """An HTTP response of any status."""

    status: int
    body: bytes


class FetchFailed(Exception):
    """No complete response was received. `result` is the reason as a metrics label, the message is for people."""

    def __init__(self, result: Failure, why: str) -> None:
        super().__init__(why)
        self.result: Failure = result


class Fetch(Protocol):
    """Function that fetches a page. Raises FetchFailed."""

    async def __call__(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched: ...


class Post(Protocol):
    """The posting of a JSON body to an engine. Raises FetchFailed."""

    async def post(self, url: str, body: bytes, *, timeout_s: float, max_bytes: int) -> Fetched: ...
