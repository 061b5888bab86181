"""What the tier asks of the request line: an answer to one line, as if its caller had sent it."""

from typing import Protocol

import msgspec

from accounts.caller import Caller
from providers.target import Tier
from providers.wire import Priority


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a known caller. `body` is its JSON."""

    request_id: str
    caller: Caller
    endpoint: str
    """The path of the API that the body is written for."""
    body: bytes
    priority: Priority
    tier: Tier = "batch"


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The reply, and what all attempts came to. Tokens are those of the answer that was given."""

    status: int
    body: bytes
    code: str = ""
    """The error's code; empty for none."""
    retry_after_s: float | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_nanousd: int | None = 0
    """None where an attempt's cost is not known."""


class Answering(Protocol):
    """The request line, as the tier sees it. It classifies, plans, sends, books and answers like for any request."""

    async def answer(self, asked: Asked) -> Answered:
        """Answers one request. Never raises but a cancellation."""
        ...
