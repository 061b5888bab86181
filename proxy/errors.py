"""Request failures, each with its HTTP status and error code: those of the gateway's own in the heads of their classes here, those that
come from accounts, cost and providers in `FAULTS`. Nothing else names a status or a code.

The body is OpenAI's: `{"error": {"message", "type", "param", "code"}}`, all four keys always.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from accounts.errors import DirectoryUnavailable, KeyBlocked, MalformedKey, UnknownKey
from cost.errors import BudgetExceeded, BudgetsUnavailable, LedgerUnavailable, UnpricedUnderBudget
from providers.errors import (
    AnswerLost,
    ConnectFailed,
    FirstTokenTimeout,
    MalformedReply,
    Original,
    PromptTooLong,
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


_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"
_TYPES: Final[Mapping[int, str]] = {402: "insufficient_quota", 403: "permission_error", 429: "requests"}
"""The error types of statuses, as OpenAI has them; of the others there is one for 4xx and one for 5xx."""
_FIRST_OF_SERVER: Final = 500
_UNEXPECTED: Final = Fault(500, _SERVER, "internal_error")


def fault_of(status: int, code: str | None, error_type: str | None = None) -> Fault:
    """Return the fault of a status and code; its type is the status's unless another one is named."""
    usual = _TYPES.get(status, _SERVER if status >= _FIRST_OF_SERVER else _INVALID)
    return Fault(status, error_type or usual, code)


class Refused(Exception):
    """A request refused by the gateway. `message` is shown to the caller and names the remedy.

    A kind of refusal tells its status and code in its head, `class Full(Refused, status=429, code="full")`, or has those of
    the kind that it is one of; without either it cannot be defined.
    """

    fault: Fault = _UNEXPECTED
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Extra reply headers for this error."""
    targets: tuple[str, ...] = ()
    """The targets that could not be called or had no room, of a refusal for that."""

    def __init_subclass__(
        cls, *, status: int | None = None, code: str | None = None, error_type: str | None = None
    ) -> None:
        super().__init_subclass__()
        if status is not None:
            cls.fault = fault_of(status, code, error_type)
        elif cls.fault is _UNEXPECTED:
            raise TypeError(f"{cls.__name__} has no status")

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


class BadRequest(Refused, status=400):
    """The body or a header is wrong."""


class BodyTooLarge(Refused, status=413, code="request_too_large"):
    """The body is larger than `server.max_body_bytes`."""


class UploadTimeout(Refused, status=408, code="request_timeout"):
    """The body did not arrive in time."""


class NotAuthenticated(Refused, status=401, code="invalid_api_key"):
    """No key was sent."""


class PluginUnavailable(Refused, status=503, code="plugin_unavailable"):
    """A plug-in that the request has to pass gave no answer."""


class WrongTeam(Refused, status=403, code="wrong_team"):
    """The claimed team is not the key's."""


class AdminOnly(Refused, status=403, code="admin_only"):
    """The key's role is not admin."""


class OperatorOnly(Refused, status=403, code="operator_only"):
    """A change that concerns all organisations, attempted by an admin of another one than the operator's."""


class NotSignedIn(Refused, status=401, code="not_signed_in"):
    """A page's script request whose session has ended."""


class SignInFirst(Refused, status=401, code="not_signed_in"):
    """A page request without a session. `where` is the path of the sign-in page."""

    def __init__(self, where: str) -> None:
        super().__init__("Sign in first.")
        self.where = where


class CrossSite(Refused, status=403, code="cross_site"):
    """A changing request that does not come from one of our own pages (CSRF)."""


class AskOff(Refused, status=403, code="ask_off"):
    """A question in words of an organisation that has not switched Ask on, or whose Ask cannot spend now."""


class AskLimit(Refused, status=429, code="ask_limit"):
    """A person or key has asked as many questions in this hour as it may."""


class AskUnanswered(Refused, status=502, code="ask_unanswered"):
    """No model gave an answer to a question that may be shown."""


class NotAllowed(Refused, status=403, code="not_allowed"):
    """The person or the key lacks the right for this."""


class KeyNotFound(Refused, status=404, code="key_not_found"):
    """No such key, or another team's: the two must look the same."""


class PersonNotFound(Refused, status=404, code="person_not_found"):
    """No such person, or another organisation's: the two must look the same."""


class LimitNotFound(Refused, status=404, code="limit_not_found"):
    """No such limit, or another organisation's: the two must look the same."""


class AuditEntryNotFound(Refused, status=404, code="audit_entry_not_found"):
    """No such entry, or another organisation's: the two must look the same."""


class NameTaken(Refused, status=409, code="name_taken"):
    """The name or id is taken."""


class LastAdmin(Refused, status=409, code="last_admin"):
    """The change would leave the organisation without an admin."""


class ChangesUnavailable(Refused, status=503, code="changes_unavailable"):
    """The database does not answer; nothing was changed."""


class ReadsOnly(Refused, status=403, code="finance_reads_only"):
    """A key with the role finance attempted a change or a model call."""

    def __init__(self) -> None:
        super().__init__(
            "This key has the role finance: it reads all figures and changes nothing, and it calls no models. "
            "Use a key of the role member or admin."
        )


class ModelNotFound(Refused, status=404, code="model_not_found"):
    """No such alias or target, or the team may not use it."""


class NotAcceptable(Refused, status=406, code="not_acceptable"):
    """The reply has none of the content types that the request accepts."""


class DatabaseAway(Refused, status=503, code="database_unavailable"):
    """The database does not answer, so the caller cannot be authenticated."""


class UsageUnavailable(Refused, status=503, code="usage_unavailable"):
    """The database does not answer."""


class MetricsClosed(Refused, status=403, code="metrics_closed"):
    """/metrics was requested from an address that is not allowed, or without its token."""


class TeamNotFound(Refused, status=404, code="team_not_found"):
    """No such team, or another's: the two must look the same."""


class RequestNotFound(Refused, status=404, code="request_not_found"):
    """No such request, or another team's: the two must look the same."""


class ResponseNotFound(Refused, status=404, code="response_not_found"):
    """No such kept response, or another team's: the two must look the same."""


class ConversationNotFound(Refused, status=404, code="conversation_not_found"):
    """No such conversation, or another team's: the two must look the same."""


class BackgroundFull(Refused, status=429, code="background_full"):
    """The team has as many responses in the background as it may."""


class ResponsesUnavailable(Refused, status=503, code="responses_unavailable"):
    """The database does not answer, so kept responses cannot be read."""


class LearningOff(Refused, status=409, code="learning_off"):
    """Feedback for a request of a team that keeps no learning data to attach it to."""


class FeedbackUnavailable(Refused, status=503, code="feedback_unavailable"):
    """The database does not answer."""


class UnpricedModel(Refused, status=400, code="unpriced_model"):
    """The named model's price is unknown, and `cost.unpriced` is `refuse`."""

    def __init__(self, target_id: str) -> None:
        super().__init__(
            f"The price of `{target_id}` is unknown, so what this request costs could not be booked. Send `auto` or "
            f"another model, or ask an operator for `weighbridge prices set {target_id} --input ... --output ...`; with "
            "`cost.unpriced: book` in the gateway's configuration such requests are booked as unpriced.",
            param="model",
        )


class PricesUnavailable(Refused, status=503, code="prices_unavailable"):
    """The database does not answer."""


class PriceNotFound(Refused, status=404, code="price_not_found"):
    """No such version of a target's price."""


class BudgetNotFound(Refused, status=404, code="budget_not_found"):
    """No such budget, or another organisation's: the two must look the same."""


class BudgetsOutOfReach(Refused, status=503, code="budgets_unavailable"):
    """The database does not answer."""


class BudgetTaken(Refused, status=409, code="budget_conflict"):
    """The budget conflicts with an existing one."""


class PoolTokenRefused(Refused, status=401, code="invalid_pool_token"):
    """A registering replica does not present its pool's token, or the pool does not exist."""


class AddressNotAllowed(Refused, status=403, code="address_not_allowed"):
    """A replica's address lies in none of the networks that its pool allows."""


class PoolNotFound(Refused, status=404, code="pool_not_found"):
    """There is no such pool."""


class TargetNotFound(Refused, status=404, code="target_not_found"):
    """No such target in the current configuration."""


class MeasurementNotFound(Refused, status=404, code="measurement_not_found"):
    """No such measurement."""


class ReplicaNotFound(Refused, status=404, code="replica_not_found"):
    """The pool has no such replica now."""


class ReplicaNameTaken(Refused, status=409, code="replica_name_taken"):
    """Another live engine is registered under this replica name."""


class VersionNotFound(Refused, status=404, code="version_not_found"):
    """The model has no such version, or no pool serves the model."""


class RolloutRefused(Refused, status=409, code="rollout_conflict"):
    """The step does not fit the rollout's state."""


class IncidentNotFound(Refused, status=404, code="incident_not_found"):
    """There is no such incident, or it is kept no longer."""


class PoolCrowded(Refused, status=429, code="pool_full", error_type=_INVALID):
    """The pool has reached its limit of replicas or pending orders."""


class FleetUnavailable(Refused, status=503, code="fleet_unavailable"):
    """The database does not answer."""


class ContextTooLong(Refused, status=400, code="context_length_exceeded"):
    """The prompt exceeds the context of every target that could otherwise serve it."""


class ContentFiltered(Refused, status=400, code="content_filter"):
    """A rule of the guard refuses the request. Names of rules and kinds are told, never what was found."""

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        blocked = {name: {"filtered": True, "detected": True} for name in names}
        inner = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": blocked}
        super().__init__(message, param="prompt", details={"innererror": inner})

    @classmethod
    def blocked(cls, names: Sequence[str]) -> "ContentFiltered":
        """Return the refusal of a request in which something of these kinds was found."""
        found = ", ".join(f"`{name}`" for name in names)
        return cls(
            f"This request was refused, because what it has of {found} must not be sent. Send it without.", names
        )

    @classmethod
    def of_own(cls, reasons: str) -> "ContentFiltered":
        """Return the refusal of a request that only own engines may be asked, of which none can serve it."""
        return cls(
            f"What this request has may be sent to own engines alone, and none of them can serve it ({reasons}). Send it without, or name "
            "a model of your own."
        )


class GuardUnavailable(Refused, status=503, code="guard_unavailable"):
    """The guard cannot judge the request or its answer, and its rules let pass nothing that was not judged."""

    @classmethod
    def by(cls, rule: str, *, answer: bool, retry_after_s: float = 1.0) -> "GuardUnavailable":
        """Return the error for want of one rule's verdict."""
        what = (
            "The answer could not be judged by `{}`, so it is not given"
            if answer
            else "The request could not be judged by `{}`, so it was not sent"
        )
        return cls(f"{what.format(rule)}; try again shortly.", retry_after_s=retry_after_s)


class NoEligibleTarget(Refused, status=400, code="no_eligible_target"):
    """No configured target has the capabilities that the request needs."""


class TargetsUnavailable(Refused, status=503, code="targets_unavailable"):
    """Every eligible target's deployments are ejected by their breakers."""


class QueueRefusal(Refused, status=429, code="queue_full"):
    """A target's queue refused the request, or dropped it while it waited."""


class KeyInFlight(Refused, status=409, code="idempotency_key_in_flight"):
    """A request with the same Idempotency-Key is being served."""


class KeyReused(Refused, status=422, code="idempotency_key_reused"):
    """The Idempotency-Key was used before with a different request."""


class AnswerNotKept(Refused, status=422, code="idempotency_answer_not_kept"):
    """The request of this Idempotency-Key was served, but its answer was too large to keep for replay."""


class TooManyKeys(Refused, status=429, code="idempotency_keys_full"):
    """The team has reached its limit of kept Idempotency-Keys."""


class IdempotencyUnavailable(Refused, status=503, code="idempotency_unavailable"):
    """The database does not answer, so it is unknown whether the request of this Idempotency-Key was served before."""


class Overloaded(Refused, status=503, code="overloaded"):
    """The process is overloaded and sheds new requests."""


class Draining(Refused, status=503, code="draining"):
    """The process is stopping and takes no new work."""


class NotStarted(Refused, status=503, code="starting"):
    """No process serves yet; /readyz says what the start waits for."""


class ControlPlaneAway(Refused, status=503, code="control_plane_away"):
    """The control plane, which serves pages and everything but the models, does not answer."""


class HeadTooLarge(Refused, status=431, code="request_header_fields_too_large"):
    """The request line and the header fields are too long or too many."""


class InvalidHttp(Refused, status=400, code="invalid_http"):
    """Bytes that are no HTTP request, or one that two readers could read differently."""


class UnsupportedVersion(Refused, status=505, code="http_version_not_supported", error_type=_INVALID):
    """A version of HTTP that is not spoken here."""


class UnsupportedCoding(Refused, status=501, code="unsupported_transfer_coding", error_type=_INVALID):
    """A transfer coding other than `chunked`."""


class UnsupportedEncoding(Refused, status=415, code="unsupported_content_encoding"):
    """A body with a content encoding."""


class UnknownExpectation(Refused, status=417, code="unknown_expectation"):
    """An `expect` of something else than `100-continue`."""


class MethodNotAllowed(Refused, status=405, code="method_not_allowed"):
    """The path has no such method. `allow` are those that it has."""

    def __init__(self, allow: str) -> None:
        super().__init__(f"This path does not have this method; send {allow}.")
        self.headers = ((b"allow", allow.encode()),)


class DeadlineExceeded(Refused, status=504, code="deadline_exceeded"):
    """The answer cannot be, or was not, complete before the request's deadline."""

    def __init__(self, message: str) -> None:
        super().__init__(message, should_retry=False)


FAULTS: Final[Mapping[type[BaseException], Fault]] = {
    MalformedKey: fault_of(401, "invalid_api_key"),
    UnknownKey: fault_of(401, "invalid_api_key"),
    KeyBlocked: fault_of(403, "key_blocked"),
    BudgetExceeded: fault_of(402, "budget_exceeded"),
    UnpricedUnderBudget: fault_of(402, "unpriced_under_budget"),
    BudgetsUnavailable: fault_of(503, "budgets_unavailable"),
    DirectoryUnavailable: fault_of(503, "accounts_unavailable"),
    LedgerUnavailable: fault_of(503, "ledger_unavailable"),
    RequestRejected: fault_of(400, None),
    PromptTooLong: fault_of(400, "context_length_exceeded"),
    UpstreamRateLimited: fault_of(429, "upstream_rate_limited"),
    UpstreamOverloaded: fault_of(503, "upstream_overloaded"),
    UpstreamRefusedUs: fault_of(502, "upstream_refused"),
    UpstreamUnavailable: fault_of(502, "upstream_unavailable"),
    AnswerLost: fault_of(502, "upstream_lost"),
    ConnectFailed: fault_of(502, "upstream_unreachable"),
    FirstTokenTimeout: fault_of(504, "first_token_timeout"),
    UpstreamTimeout: fault_of(504, "upstream_timeout"),
    StreamCut: fault_of(502, "upstream_stream_cut"),
    MalformedReply: fault_of(502, "upstream_malformed"),
    NoRoomForReply: fault_of(503, "no_room_for_reply"),
}

"""The faults of errors that other packages raise; one without a row has that of the nearest class that it is derived from."""

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


def known_fault(kind: type[BaseException]) -> Fault | None:
    """Return the fault of a kind of error; None for an unexpected one."""
    if issubclass(kind, Refused):
        return kind.fault
    return next((FAULTS[each] for each in kind.__mro__ if each in FAULTS), None)


def code_of(kind: type[BaseException]) -> str:
    """Return the code that callers see for a kind of error. Raises LookupError where it has none of its own."""
    fault = known_fault(kind)
    if fault is None or fault.code is None:
        raise LookupError(f"{kind.__name__} has no code")
    return fault.code


def error_reply(error: BaseException) -> ErrorReply:
    """Map any exception to the reply that the caller sees. An unexpected one becomes a 500 without details."""
    reply = _reply_to(error)
    original = error.original if isinstance(error, UpstreamError) else None
    return reply if original is None else msgspec.structs.replace(reply, original=original)


def _reply_to(error: BaseException) -> ErrorReply:
    if isinstance(error, Refused):
        return _refused(error)
    fault = known_fault(type(error))
    if fault is None:
        words = "The gateway failed unexpectedly. Tell its operators the x-request-id of this reply."
        return _reply(_UNEXPECTED, words)
    match error:
        case RequestRejected():
            fault = Fault(error.status or fault.status, error.error_type, error.code)
            return _reply(fault, error.public, param=error.param)
        case UpstreamError():
            # The gateway has already tried what could be tried: the client should not multiply it.
            again = None if isinstance(error, UpstreamRateLimited) else False
            return _reply(fault, error.public, retry_after_s=error.retry_after_s, should_retry=again)
        case BudgetExceeded() | UnpricedUnderBudget():
            return _over_budget(fault, error)
        case _:
            return _reply(fault, str(error))


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
    if fault.code == Draining.fault.code:
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


def _refused(error: Refused) -> ErrorReply:
    told = error.fault
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
    """Render a spent budget with `retry-after` and the reset time; `x-should-retry: false` stops clients' own retries."""
    reply = _reply(fault, str(error), should_retry=False)
    if isinstance(error, UnpricedUnderBudget) or error.resets_at is None:
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
