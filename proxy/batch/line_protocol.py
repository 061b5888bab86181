"""The tier's questions to the request line: an answer to one line, as if its caller had sent it, or its cost by each way."""

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from accounts.caller import Caller
from cost.ledger.entries import Entry
from providers.target import Deployment, Tier
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
    saved_nanousd: int = 0
    """The price at the same targets had somebody waited for it, less what it did cost."""


class Answering(Protocol):
    """The request line, as the tier sees it. It classifies, plans, sends, books and answers like for any request."""

    async def answer(self, asked: Asked) -> Answered:
        """Answers one request. Never raises but a cancellation."""
        ...


OptionName = Literal["own", "flex", "provider", "calls"]
"""The ways by which a line may be answered: our own engines, a provider's slower service tier, its batch API, plain calls."""


class ProviderBatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line as a provider's batch API takes it."""

    target_id: str
    deployment: Deployment
    path: str
    """The API's, such as `chat/completions`."""
    body: bytes
    reserve: Entry
    """Its reservation. It is booked under a request id and a process that are known once the line is claimed."""
    most_nanousd: int | None
    """The most that it may cost, for budgets to hold."""


class Offers(msgspec.Struct, frozen=True, kw_only=True):
    """The expected cost of a line by each way that there is for it, in nano-dollars; None where it is not known."""

    costs: Mapping[OptionName, int | None]
    handing: ProviderBatchLine | None = None
    """With the way `provider` alone."""


class ProviderBatchLines(Protocol):
    """The request line, as far as lines concern it that a provider's batch API answers."""

    async def offers(self, asked: Asked, *, flex: bool) -> Offers:
        """Return the cost of one request by each way, as it would be planned now. Raises a Refused for one that cannot be asked."""
        ...

    async def answered(self, asked: Asked, reserve: Entry, body: bytes) -> tuple[Answered, Entry]:
        """Return the answer of a line from what the provider said, with the entry that closes its reservation, at the price of a
        batch. Raises a Refused or an UpstreamError where none can be made of it.
        """
        ...
