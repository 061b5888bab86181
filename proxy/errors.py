"""Every way a request can fail, and the one table that turns it into HTTP.

The body is OpenAI's: `{"error": {"message", "type", "param", "code"}}`, all four keys always.
"""

import math

import msgspec

from accounts.errors import DirectoryUnavailable, MalformedKey, UnknownKey
from cost.errors import LedgerUnavailable
from providers.errors import (
    AnswerLost,
    CannotCarry,
    ConnectFailed,
    FirstTokenTimeout,
    MalformedReply,
    PromptTooLong,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
    UpstreamUnavailable,
)


class Refused(Exception):
    """The gateway says no. `message` tells the caller what to do; it is safe to show."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry


class BadRequest(Refused):
    """The body or a header is wrong."""


class BodyTooLarge(Refused):
    """The body is larger than `server.max_body_bytes`."""


class UploadTimeout(Refused):
    """The body did not arrive in time."""


class NotAuthenticated(Refused):
    """No key was sent."""


class WrongTeam(Refused):
    """The claimed team is not the key's."""


class ModelNotFound(Refused):
    """No such alias or target, or the team may not use it."""


class UsageUnavailable(Refused):
    """The database does not answer."""


class MetricsClosed(Refused):
    """Metrics were asked for from elsewhere, or without their token."""


class TeamNotFound(Refused):
    """No such team, or another's: the two must look the same."""


class RequestNotFound(Refused):
    """No such request, or another team's: the two must look the same."""


class LearningOff(Refused):
    """The team keeps nothing that feedback could be booked to."""


class FeedbackUnavailable(Refused):
    """The database does not answer."""


class ContextTooLong(Refused):
    """The prompt fits no target that could otherwise serve it."""


class NoEligibleTarget(Refused):
    """Targets exist, but none can do what was asked."""


class TargetsUnavailable(Refused):
    """Every eligible target's deployments are ejected by their breakers."""


class RateLimited(Refused):
    """A request or token limit is used up."""


class Overloaded(Refused):
    """The process already holds as many requests as it may."""


class Draining(Refused):
    """The process is stopping and takes no new work."""


class Fault(msgspec.Struct, frozen=True):
    """What a caller sees of a failure."""

    status: int
    type: str
    code: str | None


_INVALID = "invalid_request_error"
_SERVER = "server_error"

TABLE: dict[type[BaseException], Fault] = {
    BadRequest: Fault(400, _INVALID, None),
    BodyTooLarge: Fault(413, _INVALID, "request_too_large"),
    UploadTimeout: Fault(408, _INVALID, "request_timeout"),
    NotAuthenticated: Fault(401, _INVALID, "invalid_api_key"),
    MalformedKey: Fault(401, _INVALID, "invalid_api_key"),
    UnknownKey: Fault(401, _INVALID, "invalid_api_key"),
    WrongTeam: Fault(403, "permission_error", "wrong_team"),
    ModelNotFound: Fault(404, _INVALID, "model_not_found"),
    UsageUnavailable: Fault(503, _SERVER, "usage_unavailable"),
    MetricsClosed: Fault(403, "permission_error", "metrics_closed"),
    TeamNotFound: Fault(404, _INVALID, "team_not_found"),
    RequestNotFound: Fault(404, _INVALID, "request_not_found"),
    LearningOff: Fault(409, _INVALID, "learning_off"),
    FeedbackUnavailable: Fault(503, _SERVER, "feedback_unavailable"),
    ContextTooLong: Fault(400, _INVALID, "context_length_exceeded"),
    NoEligibleTarget: Fault(400, _INVALID, "no_eligible_target"),
    RateLimited: Fault(429, "requests", "rate_limit_exceeded"),
    Overloaded: Fault(503, _SERVER, "overloaded"),
    Draining: Fault(503, _SERVER, "draining"),
    TargetsUnavailable: Fault(503, _SERVER, "targets_unavailable"),
    DirectoryUnavailable: Fault(503, _SERVER, "accounts_unavailable"),
    LedgerUnavailable: Fault(503, _SERVER, "ledger_unavailable"),
    RequestRejected: Fault(400, _INVALID, None),
    CannotCarry: Fault(400, _INVALID, None),
    PromptTooLong: Fault(400, _INVALID, "context_length_exceeded"),
    UpstreamRateLimited: Fault(429, "requests", "upstream_rate_limited"),
    UpstreamRefusedUs: Fault(502, _SERVER, "upstream_refused"),
    UpstreamUnavailable: Fault(502, _SERVER, "upstream_unavailable"),
    AnswerLost: Fault(502, _SERVER, "upstream_lost"),
    ConnectFailed: Fault(502, _SERVER, "upstream_unreachable"),
    FirstTokenTimeout: Fault(504, _SERVER, "first_token_timeout"),
    UpstreamTimeout: Fault(504, _SERVER, "upstream_timeout"),
    StreamCut: Fault(502, _SERVER, "upstream_stream_cut"),
    MalformedReply: Fault(502, _SERVER, "upstream_malformed"),
}

_UNEXPECTED = Fault(500, _SERVER, "internal_error")
_DEFAULT_RETRY_AFTER_S = 1.0


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """An error, ready to be written: as a whole reply or as an SSE event."""

    status: int
    code: str | None
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def error_reply(error: BaseException) -> ErrorReply:
    """Maps any exception to what the caller sees; an unknown one tells nothing but its id."""
    fault = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), _UNEXPECTED)
    match error:
        case RequestRejected():
            fault = Fault(error.status or fault.status, error.error_type, error.code)
            return _reply(fault, error.public, param=error.param)
        case UpstreamRateLimited():
            return _reply(fault, error.public, retry_after_s=error.retry_after_s)
        case UpstreamError():
            # The gateway has already tried what could be tried: the client should not multiply it.
            return _reply(fault, error.public, retry_after_s=error.retry_after_s, should_retry=False)
        case Refused():
            fault = Fault(fault.status, fault.type, error.code or fault.code)
            return _reply(
                fault,
                error.message,
                param=error.param,
                retry_after_s=error.retry_after_s,
                should_retry=error.should_retry,
            )
        case MalformedKey() | UnknownKey() | DirectoryUnavailable() | LedgerUnavailable():
            return _reply(fault, str(error))
        case _:
            return _reply(fault, "The gateway failed unexpectedly. Tell its operators the x-request-id of this reply.")


def _reply(
    fault: Fault,
    message: str,
    *,
    param: str | None = None,
    retry_after_s: float | None = None,
    should_retry: bool | None = None,
) -> ErrorReply:
    body = {"error": {"message": message, "type": fault.type, "param": param, "code": fault.code}}
    headers: list[tuple[bytes, bytes]] = []
    if fault.status in {429, 503}:
        headers += retry_headers(_DEFAULT_RETRY_AFTER_S if retry_after_s is None else retry_after_s)
    if should_retry is not None:
        headers.append((b"x-should-retry", b"true" if should_retry else b"false"))
    return ErrorReply(status=fault.status, code=fault.code, body=msgspec.json.encode(body), headers=tuple(headers))


def retry_headers(retry_after_s: float) -> list[tuple[bytes, bytes]]:
    """Both spellings: OpenAI's clients read milliseconds first, everybody else whole seconds."""
    milliseconds = max(1, math.ceil(retry_after_s * 1000))
    return [
        (b"retry-after", str(math.ceil(milliseconds / 1000)).encode()),
        (b"retry-after-ms", str(milliseconds).encode()),
    ]
