"""The ending of an attempt as ledger flags and as the result in metrics and logs."""

from typing import Final, Literal

from cost.usage import UPSTREAM_STATUS
from providers.errors import (
    FirstTokenTimeout,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamTimeout,
)
from proxy.dispatch.outcome import AttemptResult
from proxy.errors import DeadlineExceeded

CALLER_GONE: Final = 499
"""The status of a request whose caller hung up before its end (nginx's convention)."""

Ending = Literal["ok", "caller_gone", "slow_reader", "shutdown", "failed", "hedge_lost"]
"""How an attempt ended. `hedge_lost`: of two that ran beside each other the other one began to answer first."""
Unused = Literal["escalated", "discarded", "hedge_lost", "confirmed", "disputed"]
"""The reason that an answer was not given: `escalated`, a better target's replaced it; `discarded`, it was the better
target's but the worse answer; `hedge_lost`, another attempt was quicker; `confirmed`, of two cheap answers that agreed the other
was given; `disputed`, they did not agree, or it was too late for that.
"""


def flags_of(ending: Ending, error: BaseException | None) -> tuple[str, ...]:
    """Returns the ledger's flags: the error's where there is one, else the ending's; empty for a success."""
    match error:
        case None:
            pass
        case FirstTokenTimeout():
            return ("first_token_timeout",)
        case UpstreamTimeout():
            return ("upstream_timeout",)
        case StreamCut():
            return ("stream_cut",)
        case DeadlineExceeded():
            return ("deadline_exceeded",)
        case UpstreamError():
            # Callers got another status: whose fault it was is for operators to mend, and for the books to know.
            return ("upstream_error", *([f"{UPSTREAM_STATUS}{error.status}"] if error.status is not None else []))
    return () if ending == "ok" else (ending,)


def result_of(ending: Ending, error: BaseException | None) -> AttemptResult:
    """Returns the attempt's result for metrics and logs."""
    match error:
        case None:
            pass
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
    return ending if ending in {"ok", "hedge_lost"} else "cancelled"
