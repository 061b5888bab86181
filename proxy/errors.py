"""Request failures, and the one table that maps each to its HTTP status and error code.

The body is OpenAI's: `{"error": {"message", "type", "param", "code"}}`, all four keys always.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from accounts.errors import DirectoryUnavailable, MalformedKey, UnknownKey
from cost.errors import BudgetExceeded, BudgetsUnavailable, LedgerUnavailable, UnpricedUnderBudget
from providers.errors import (
    AnswerLate,
    AnswerLost,
    CannotCarry,
    ConnectFailed,
    FirstTokenTimeout,
    MalformedReply,
    Original,
    PromptTooLong,
    ReplicaSilent,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from providers.upstream import NoRoomForReply


class Fault(msgspec.Struct, frozen=True):
    """The HTTP status, error type and code that a caller sees for a failure."""

    status: int
    type: str
    code: str | None


class Refused(Exception):
    """A request refused by the gateway. `message` is shown to the caller and names the remedy."""

    fault: Fault | None = None
    """The fault of a kind that is defined outside of this module and so is not in TABLE."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Extra reply headers for this error."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        """Extra keys of the body's `error` object, beside OpenAI's four."""
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


class AdminOnly(Refused):
    """The key's role is not admin."""


class OperatorOnly(Refused):
    """A change that concerns all organisations, attempted by an admin of another one than the operator's."""


class NotSignedIn(Refused):
    """A page's script request whose session has ended."""


class SignInFirst(Refused):
    """A page request without a session. `where` is the path of the sign-in page."""

    def __init__(self, where: str) -> None:
        super().__init__("Sign in first.")
        self.where = where


class CrossSite(Refused):
    """A changing request that does not come from one of our own pages (CSRF)."""


class NotAllowed(Refused):
    """The person or the key lacks the right for this."""


class KeyNotFound(Refused):
    """No such key, or another team's: the two must look the same."""


class PersonNotFound(Refused):
    """No such person, or another organisation's: the two must look the same."""


class LimitNotFound(Refused):
    """No such limit, or another organisation's: the two must look the same."""


class AuditEntryNotFound(Refused):
    """No such entry, or another organisation's: the two must look the same."""


class NameTaken(Refused):
    """The name or id is taken."""


class LastAdmin(Refused):
    """The change would leave the organisation without an admin."""


class ChangesUnavailable(Refused):
    """The database does not answer; nothing was changed."""


class ReadsOnly(Refused):
    """A key with the role finance attempted a change or a model call."""

    def __init__(self) -> None:
        super().__init__(
            "This key has the role finance: it reads all figures and changes nothing, and it calls no models. "
            "Use a key of the role member or admin."
        )


class ModelNotFound(Refused):
    """No such alias or target, or the team may not use it."""


class NotAcceptable(Refused):
    """The reply has none of the content types that the request accepts."""


class DatabaseAway(Refused):
    """The database does not answer, so the caller cannot be authenticated."""


class UsageUnavailable(Refused):
    """The database does not answer."""


class MetricsClosed(Refused):
    """/metrics was requested from an address that is not allowed, or without its token."""


class TeamNotFound(Refused):
    """No such team, or another's: the two must look the same."""


class RequestNotFound(Refused):
    """No such request, or another team's: the two must look the same."""


class ResponseNotFound(Refused):
    """No such kept response, or another team's: the two must look the same."""


class ConversationNotFound(Refused):
    """No such conversation, or another team's: the two must look the same."""


class BackgroundFull(Refused):
    """The team has as many responses in the background as it may."""


class ResponsesUnavailable(Refused):
    """The database does not answer, so kept responses cannot be read."""


class LearningOff(Refused):
    """Feedback for a request of a team that keeps no learning data to attach it to."""


class FeedbackUnavailable(Refused):
    """The database does not answer."""


class UnpricedModel(Refused):
    """The named model's price is unknown, and `cost.unpriced` is `refuse`."""

    def __init__(self, target_id: str) -> None:
        super().__init__(
            f"The price of `{target_id}` is unknown, so what this request costs could not be booked. Send `auto` or "
            f"another model, or ask an operator for `weighbridge prices set {target_id} --input ... --output ...`; with "
            "`cost.unpriced: book` in the gateway's configuration such requests are booked as unpriced.",
            param="model",
        )


class PricesUnavailable(Refused):
    """The database does not answer."""


class PriceNotFound(Refused):
    """No such version of a target's price."""


class BudgetNotFound(Refused):
    """No such budget, or another organisation's: the two must look the same."""


class BudgetsOutOfReach(Refused):
    """The database does not answer."""


class BudgetTaken(Refused):
    """The budget conflicts with an existing one."""


class PoolTokenRefused(Refused):
    """A registering replica does not present its pool's token, or the pool does not exist."""


class AddressNotAllowed(Refused):
    """A replica's address lies in none of the networks that its pool allows."""


class PoolNotFound(Refused):
    """There is no such pool."""


class TargetNotFound(Refused):
    """No such target in the current configuration."""


class MeasurementNotFound(Refused):
    """No such measurement."""


class ReplicaNotFound(Refused):
    """The pool has no such replica now."""


class ReplicaNameTaken(Refused):
    """Another live engine is registered under this replica name."""


class VersionNotFound(Refused):
    """The model has no such version, or no pool serves the model."""


class RolloutRefused(Refused):
    """The step does not fit the rollout's state."""


class PoolCrowded(Refused):
    """The pool has reached its limit of replicas or pending orders."""


class FleetUnavailable(Refused):
    """The database does not answer."""


class ContextTooLong(Refused):
    """The prompt exceeds the context of every target that could otherwise serve it."""


class NoEligibleTarget(Refused):
    """No configured target has the capabilities that the request needs."""


class TargetsUnavailable(Refused):
    """Every eligible target's deployments are ejected by their breakers."""


class QueueRefusal(Refused):
    """A target's queue refused the request, or dropped it while it waited."""


class KeyInFlight(Refused):
    """A request with the same Idempotency-Key is being served."""


class KeyReused(Refused):
    """The Idempotency-Key was used before with a different request."""


class AnswerNotKept(Refused):
    """The request of this Idempotency-Key was served, but its answer was too large to keep for replay."""


class TooManyKeys(Refused):
    """The team has reached its limit of kept Idempotency-Keys."""


class IdempotencyUnavailable(Refused):
    """The database does not answer, so it is unknown whether the request of this Idempotency-Key was served before."""


class Overloaded(Refused):
    """The process is overloaded and sheds new requests."""


class Draining(Refused):
    """The process is stopping and takes no new work."""


class ControlPlaneAway(Refused):
    """The control plane, which serves pages and everything but the models, does not answer."""


class HeadTooLarge(Refused):
    """The request line and the header fields are too long or too many."""


class InvalidHttp(Refused):
    """The bytes are no HTTP request, or one that two readers could read differently."""


class UnsupportedVersion(Refused):
    """A version of HTTP that is not spoken here."""


class UnsupportedCoding(Refused):
    """A transfer coding other than `chunked`."""


class UnsupportedEncoding(Refused):
    """A body with a content encoding."""


class UnknownExpectation(Refused):
    """An `expect` of something else than `100-continue`."""


class MethodNotAllowed(Refused):
    """The path has no such method. `allow` are those that it has."""

    def __init__(self, allow: str) -> None:
        super().__init__(f"This path does not have this method; send {allow}.")
        self.headers = ((b"allow", allow.encode()),)


class DeadlineExceeded(Refused):
    """The answer cannot be, or was not, complete before the request's deadline."""

    def __init__(self, message: str) -> None:
        super().__init__(message, should_retry=False)


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
    AdminOnly: Fault(403, "permission_error", "admin_only"),
    OperatorOnly: Fault(403, "permission_error", "operator_only"),
    NotSignedIn: Fault(401, _INVALID, "not_signed_in"),
    SignInFirst: Fault(401, _INVALID, "not_signed_in"),
    CrossSite: Fault(403, "permission_error", "cross_site"),
    NotAllowed: Fault(403, "permission_error", "not_allowed"),
    KeyNotFound: Fault(404, _INVALID, "key_not_found"),
    PersonNotFound: Fault(404, _INVALID, "person_not_found"),
    LimitNotFound: Fault(404, _INVALID, "limit_not_found"),
    AuditEntryNotFound: Fault(404, _INVALID, "audit_entry_not_found"),
    NameTaken: Fault(409, _INVALID, "name_taken"),
    LastAdmin: Fault(409, _INVALID, "last_admin"),
    ChangesUnavailable: Fault(503, _SERVER, "changes_unavailable"),
    ReadsOnly: Fault(403, "permission_error", "finance_reads_only"),
    ModelNotFound: Fault(404, _INVALID, "model_not_found"),
    NotAcceptable: Fault(406, _INVALID, "not_acceptable"),
    DatabaseAway: Fault(503, _SERVER, "database_unavailable"),
    UsageUnavailable: Fault(503, _SERVER, "usage_unavailable"),
    MetricsClosed: Fault(403, "permission_error", "metrics_closed"),
    TeamNotFound: Fault(404, _INVALID, "team_not_found"),
    RequestNotFound: Fault(404, _INVALID, "request_not_found"),
    ResponseNotFound: Fault(404, _INVALID, "response_not_found"),
    ConversationNotFound: Fault(404, _INVALID, "conversation_not_found"),
    BackgroundFull: Fault(429, "requests", "background_full"),
    ResponsesUnavailable: Fault(503, _SERVER, "responses_unavailable"),
    LearningOff: Fault(409, _INVALID, "learning_off"),
    FeedbackUnavailable: Fault(503, _SERVER, "feedback_unavailable"),
    UnpricedModel: Fault(400, _INVALID, "unpriced_model"),
    PriceNotFound: Fault(404, _INVALID, "price_not_found"),
    PricesUnavailable: Fault(503, _SERVER, "prices_unavailable"),
    BudgetNotFound: Fault(404, _INVALID, "budget_not_found"),
    BudgetsOutOfReach: Fault(503, _SERVER, "budgets_unavailable"),
    BudgetTaken: Fault(409, _INVALID, "budget_conflict"),
    BudgetExceeded: Fault(402, "insufficient_quota", "budget_exceeded"),
    UnpricedUnderBudget: Fault(402, "insufficient_quota", "unpriced_under_budget"),
    BudgetsUnavailable: Fault(503, _SERVER, "budgets_unavailable"),
    PoolTokenRefused: Fault(401, _INVALID, "invalid_pool_token"),
    AddressNotAllowed: Fault(403, "permission_error", "address_not_allowed"),
    PoolNotFound: Fault(404, _INVALID, "pool_not_found"),
    TargetNotFound: Fault(404, _INVALID, "target_not_found"),
    MeasurementNotFound: Fault(404, _INVALID, "measurement_not_found"),
    ReplicaNotFound: Fault(404, _INVALID, "replica_not_found"),
    ReplicaNameTaken: Fault(409, _INVALID, "replica_name_taken"),
    VersionNotFound: Fault(404, _INVALID, "version_not_found"),
    RolloutRefused: Fault(409, _INVALID, "rollout_conflict"),
    PoolCrowded: Fault(429, _INVALID, "pool_full"),
    FleetUnavailable: Fault(503, _SERVER, "fleet_unavailable"),
    ContextTooLong: Fault(400, _INVALID, "context_length_exceeded"),
    NoEligibleTarget: Fault(400, _INVALID, "no_eligible_target"),
    QueueRefusal: Fault(429, "requests", "queue_full"),
    KeyInFlight: Fault(409, _INVALID, "idempotency_key_in_flight"),
    KeyReused: Fault(422, _INVALID, "idempotency_key_reused"),
    AnswerNotKept: Fault(422, _INVALID, "idempotency_answer_not_kept"),
    TooManyKeys: Fault(429, "requests", "idempotency_keys_full"),
    IdempotencyUnavailable: Fault(503, _SERVER, "idempotency_unavailable"),
    Overloaded: Fault(503, _SERVER, "overloaded"),
    Draining: Fault(503, _SERVER, "draining"),
    ControlPlaneAway: Fault(503, _SERVER, "control_plane_away"),
    HeadTooLarge: Fault(431, _INVALID, "request_header_fields_too_large"),
    InvalidHttp: Fault(400, _INVALID, "invalid_http"),
    UnsupportedVersion: Fault(505, _INVALID, "http_version_not_supported"),
    UnsupportedCoding: Fault(501, _INVALID, "unsupported_transfer_coding"),
    UnsupportedEncoding: Fault(415, _INVALID, "unsupported_content_encoding"),
    UnknownExpectation: Fault(417, _INVALID, "unknown_expectation"),
    MethodNotAllowed: Fault(405, _INVALID, "method_not_allowed"),
    DeadlineExceeded: Fault(504, _SERVER, "deadline_exceeded"),
    TargetsUnavailable: Fault(503, _SERVER, "targets_unavailable"),
    DirectoryUnavailable: Fault(503, _SERVER, "accounts_unavailable"),
    LedgerUnavailable: Fault(503, _SERVER, "ledger_unavailable"),
    RequestRejected: Fault(400, _INVALID, None),
    CannotCarry: Fault(400, _INVALID, None),
    PromptTooLong: Fault(400, _INVALID, "context_length_exceeded"),
    UpstreamRateLimited: Fault(429, "requests", "upstream_rate_limited"),
    UpstreamOverloaded: Fault(503, _SERVER, "upstream_overloaded"),
    UpstreamRefusedUs: Fault(502, _SERVER, "upstream_refused"),
    UpstreamUnavailable: Fault(502, _SERVER, "upstream_unavailable"),
    AnswerLost: Fault(502, _SERVER, "upstream_lost"),
    ConnectFailed: Fault(502, _SERVER, "upstream_unreachable"),
    FirstTokenTimeout: Fault(504, _SERVER, "first_token_timeout"),
    UpstreamTimeout: Fault(504, _SERVER, "upstream_timeout"),
    AnswerLate: Fault(504, _SERVER, "upstream_timeout"),
    ReplicaSilent: Fault(504, _SERVER, "upstream_timeout"),
    StreamCut: Fault(502, _SERVER, "upstream_stream_cut"),
    MalformedReply: Fault(502, _SERVER, "upstream_malformed"),
    NoRoomForReply: Fault(503, _SERVER, "no_room_for_reply"),
}

_UNEXPECTED = Fault(500, _SERVER, "internal_error")
_DEFAULT_RETRY_AFTER_S = 1.0
BUDGET_RESET_HEADER = b"x-weighbridge-budget-reset"


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """An error rendered for the wire, as a whole reply or as an SSE event. `body` is JSON."""

    status: int
    code: str | None
    message: str
    param: str | None
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    original: Original | None = None
    """The provider's own error, for a wire that is its own."""


def error_reply(error: BaseException) -> ErrorReply:
    """Map any exception to the reply that the caller sees. An unexpected one becomes a 500 without details."""
    reply = _reply_to(error)
    original = error.original if isinstance(error, UpstreamError) else None
    return reply if original is None else msgspec.structs.replace(reply, original=original)


def _reply_to(error: BaseException) -> ErrorReply:
    fault = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), _UNEXPECTED)
    match error:
        case RequestRejected():
            fault = Fault(error.status or fault.status, error.error_type, error.code)
            return _reply(fault, error.public, param=error.param)
        case UpstreamError():
            # The gateway has already tried what could be tried: the client should not multiply it.
            again = None if isinstance(error, UpstreamRateLimited) else False
            return _reply(fault, error.public, retry_after_s=error.retry_after_s, should_retry=again)
        case Refused():
            return _refused(fault, error)
        case MalformedKey() | UnknownKey() | DirectoryUnavailable() | LedgerUnavailable() | BudgetsUnavailable():
            return _reply(fault, str(error))
        case BudgetExceeded() | UnpricedUnderBudget():
            return _over_budget(fault, error)
        case _:
            return _reply(fault, "The gateway failed unexpectedly. Tell its operators the x-request-id of this reply.")


def _reply(
    fault: Fault,
    message: str,
    *,
    param: str | None = None,
    retry_after_s: float | None = None,
    should_retry: bool | None = None,
    details: Mapping[str, Any] | None = None,
) -> ErrorReply:
    told = {"message": message, "type": fault.type, "param": param, "code": fault.code, **(details or {})}
    body = {"error": told}
    headers: list[tuple[bytes, bytes]] = []
    comes_again = fault.status in {429, 503} and should_retry is not False
    if comes_again or (fault.status == 409 and retry_after_s is not None):  # noqa: PLR2004
        headers += retry_headers(_DEFAULT_RETRY_AFTER_S if retry_after_s is None else retry_after_s)
    if fault.code == TABLE[Draining].code:
        # The next request on this connection would be refused, too; on a new one another process may take it.
        headers.append((b"connection", b"close"))
    if should_retry is not None:
        headers.append((b"x-should-retry", b"true" if should_retry else b"false"))
    return ErrorReply(
        status=fault.status,
        code=fault.code,
        message=message,
        param=param,
        body=msgspec.json.encode(body),
        headers=tuple(headers),
    )


def _refused(fault: Fault, error: Refused) -> ErrorReply:
    told = error.fault or fault
    reply = _reply(
        Fault(told.status, told.type, error.code or told.code),
        error.message,
        param=error.param,
        retry_after_s=error.retry_after_s,
        should_retry=error.should_retry,
        details=error.details,
    )
    return msgspec.structs.replace(reply, headers=(*reply.headers, *error.headers))


def _over_budget(fault: Fault, error: BudgetExceeded | UnpricedUnderBudget) -> ErrorReply:
    """Render a spent budget with `retry-after` and the reset time; `x-should-retry: false` stops clients' own
    retries.
    """
    reply = _reply(fault, str(error), should_retry=False)
    if isinstance(error, UnpricedUnderBudget):
        return reply
    headers = (
        (b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()),
        (BUDGET_RESET_HEADER, f"{error.resets_at:%Y-%m-%dT%H:%M:%SZ}".encode()),
    )
    return msgspec.structs.replace(reply, headers=(*reply.headers, *headers))


def retry_headers(retry_after_s: float) -> list[tuple[bytes, bytes]]:
    """Return both `retry-after` (seconds, standard) and `retry-after-ms` (milliseconds, read first by OpenAI's
    clients).
    """
    milliseconds = max(1, math.ceil(retry_after_s * 1000))
    return [
        (b"retry-after", str(math.ceil(milliseconds / 1000)).encode()),
        (b"retry-after-ms", str(milliseconds).encode()),
    ]
