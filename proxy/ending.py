"""How an attempt ended, in the words of the books: its flags in the ledger and its result for the observers."""

from typing import Final, Literal

from providers.errors import (
    FirstTokenTimeout,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamTimeout,
)
from proxy.errors import DeadlineExceeded
from proxy.outcome import AttemptResult

CALLER_GONE: Final = 499
"""The status of a request whose caller hung up before its end (nginx's convention)."""

Ending = Literal["ok", "caller_gone", "slow_reader", "shutdown", "failed"]
Unused = Literal["escalated", "discarded"]
"""Why a whole answer was not given: a better target's stood in for it, or it was itself the worse one of the two."""


def flags_of(ending: Ending, error: BaseException | None) -> tuple[str, ...]:
    """The ledger's flags: the error's where there is one, else the ending's; none for an answer that went well."""
    match error:
        case FirstTokenTimeout():
            return ("first_token_timeout",)
        case UpstreamTimeout():
            return ("upstream_timeout",)
        case StreamCut():
            return ("stream_cut",)
        case DeadlineExceeded():
            return ("deadline_exceeded",)
        case UpstreamError():
            return ("upstream_error",)
    return () if ending == "ok" else (ending,)


def result_of(ending: Ending, error: BaseException | None) -> AttemptResult:
    """The result that metrics and logs tell."""
    match error:
        case FirstTokenTimeout() | UpstreamTimeout() | DeadlineExceeded():
            return "timeout"
        case UpstreamRateLimited():
            return "rate_limited"
        case RequestRejected():
            return "rejected"
        case StreamCut():
            return "cut"
        case UpstreamError():
            return "error"
    return "ok" if ending == "ok" else "cancelled"
