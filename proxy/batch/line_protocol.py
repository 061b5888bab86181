"""The tier's interface to the pipeline: an answer to one line, as if its caller had sent it, or its cost by each
option.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from accounts.caller import Caller
from cost.ledger.entries import Entry
from providers.target import Deployment, Tier
from providers.wire import Priority


class LineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a known caller. `body` is its JSON."""

    request_id: str
    caller: Caller
    endpoint: str
    """The path of the API that the body is written for."""
    body: bytes
    priority: Priority
    tier: Tier = "batch"


class LineReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply, and the cost of all attempts. Tokens are those of the answer that was given."""

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
    """The cost; None where that of an attempt is not known."""
    saved_nanousd: int = 0
    """The price at the same targets for interactive use, less the cost."""


class Answering(Protocol):
    """The pipeline, as the tier sees it. It classifies, plans, sends, books and answers as for any request."""

    async def answer(self, asked: LineRequest) -> LineReply:
        """Answer one request. Raises nothing but a cancellation."""
        ...


OptionName = Literal["own", "flex", "provider", "calls"]
"""The options by which a line may be answered: our own engines, a provider's slower service tier, its batch API,
plain calls.
"""


class ProviderBatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line in the form that a provider's batch API takes."""

    target_id: str
    deployment: Deployment
    path: str
    """The API's path, such as `chat/completions`."""
    body: bytes
    reserve: Entry
    """The line's reservation. It is booked under a request id and a process that are known once the line is claimed."""
    most_nanousd: int | None
    """The most that it may cost, for budgets to hold."""


class Offers(msgspec.Struct, frozen=True, kw_only=True):
    """The expected cost of a line by each option that there is for it, in nano-dollars; None where it is not known."""

    costs: Mapping[OptionName, int | None]
    handing: ProviderBatchLine | None = None
    """The line for the provider; only with the option `provider`."""


class ProviderBatchLines(Protocol):
    """The pipeline, as the runner of provider batches sees it."""

    async def offers(self, asked: LineRequest, *, flex: bool) -> Offers:
        """Return the cost of one request by each option, as it would be planned now. Raises a Refused for a request
        that cannot be asked.
        """
        ...

    async def answered(self, asked: LineRequest, reserve: Entry, body: bytes) -> tuple[LineReply, Entry]:
        """Return the answer of a line from the provider's result, with the entry that closes its reservation, at the
        price of a batch. Raises a Refused or an UpstreamError where no answer can be made of it.
        """
        ...
