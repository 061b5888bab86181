"""The error hierarchy for everything that can go wrong between the gateway and an upstream.

Each class says whose the failure is, whether a retry or a fallback makes sense, and whether it counts against the
deployment's health. Which refusal of an upstream becomes which class is the table of `providers/data/refusals.toml`.
`proxy/errors.py` maps the classes to HTTP in one table.
"""

from typing import Literal

import msgspec

Owner = Literal["request", "operator", "pace", "health"]
"""The owner of a failure: the request (it is told to its caller), the operator (a key, credit, quota, permission, model or
address of ours is wrong), the provider's pace (it has to be left alone for a while), or the provider's health.
"""


class Original(msgspec.Struct, frozen=True):
    """A provider's own error, word for word but for our keys."""

    status: int
    type: str
    message: str


class RefusedParameter(msgspec.Struct, frozen=True):
    """A parameter that was refused by its name, and the words that say so, in lower case."""

    name: str
    words: str


class UpstreamError(Exception):
    """A failed attempt. `public` is safe to show to a caller: no upstream body, no key."""

    original: Original | None = None
    """The provider's own words, where callers of its own wire may read them: their recovery goes by them."""

    owner: Owner = "health"
    reason: str = ""
    """A short word for what it is about, such as `credit` or `overloaded`; empty where the class says it all."""

    retry_same: bool = False
    """A retry at the same target may help."""
    fall_back: bool = True
    """A fallback to the next candidate may help; False when the request itself is at fault."""
    gateway_failure: bool = True
    """The deployment's circuit breaker counts it."""

    key_refused: bool = False
    """The fault is beyond doubt the operator's: no call of anybody can succeed there until operators mend it."""

    def __init__(
        self,
        public: str,
        *,
        deployment_id: str,
        status: int | None = None,
        retry_after_s: float | None = None,
        detail: str = "",
        reason: str | None = None,
    ) -> None:
        super().__init__(public)
        if reason is not None:
            self.reason = reason
        self.detail = detail
        """The upstream's own words for operators, on one line, bounded and with keys masked; no caller sees them."""
        self.public = public
        self.deployment_id = deployment_id
        self.status = status
        self.retry_after_s = retry_after_s
        self.said: tuple[str, ...] = ()
        """The upstream's words that decided the class: for comparison alone, never shown."""
        self.without_words: UpstreamError | None = None
        """The error as it is where the request itself says `said`, and the upstream only repeats it."""


class ConnectFailed(UpstreamError):
    """No connection: refused, unresolvable, TLS failure, connect timeout."""

    retry_same = True


class UpstreamUnavailable(UpstreamError):
    """The upstream answered 5xx, or an engine that is loading or shutting down."""

    retry_same = True


class AnswerLost(UpstreamError):
    """The request was sent and no answer came back: the connection was lost, or a proxy gave up waiting.

    The upstream may have done the work, and charged for it. A retry stays allowed all the same: callers must not notice
    a killed replica, and nothing of an answer has been sent to them.
    """

    retry_same = True


class UpstreamRateLimited(UpstreamError):
    """The upstream has given us all that our limits there allow. It is healthy, so its breaker does not count it.

    `retry_after_s` is how long the provider asks to be left alone, None where it did not say.
    """

    owner = "pace"
    reason = "rate"
    gateway_failure = False


class UpstreamOverloaded(UpstreamRateLimited):
    """The upstream has too much to do at the moment, for everybody."""

    reason = "overloaded"


class FirstTokenTimeout(UpstreamError):
    """No real token within the first-token deadline; nothing was sent to the caller yet."""


class UpstreamTimeout(UpstreamError):
    """The stream went silent, or the whole answer took too long."""


class AnswerLate(UpstreamTimeout):
    """A whole answer was given up while there was time for another candidate. It may just have been long."""

    gateway_failure = False


class ReplicaSilent(UpstreamTimeout):
    """A replica of our own is down by its health checks and had sent nothing yet; another one may answer."""

    retry_same = True


class StreamCut(UpstreamError):
    """The connection ended before the stream's end marker."""


class MalformedReply(UpstreamError):
    """The upstream violated its protocol: bad JSON, an oversized event, not SSE."""


class UpstreamRefusedUs(UpstreamError):
    """A fault of the operator's there: `reason` is `key`, `credit`, `quota`, `permission`, `model` or `address`.

    Where that is not `known` beyond doubt, as with a 403 that a firewall may have given to one caller's prompt, it is counted
    as a failure of the deployment's health.
    """

    owner = "operator"

    def __init__(
        self,
        public: str,
        *,
        deployment_id: str,
        status: int | None = None,
        detail: str = "",
        reason: str = "address",
        known: bool = True,
    ) -> None:
        super().__init__(public, deployment_id=deployment_id, status=status, detail=detail, reason=reason)
        self.key_refused = known
        self.gateway_failure = not known


class RequestRejected(UpstreamError):
    """The request itself was found at fault. With `elsewhere`, another target may take it all the same.

    `status` is told to the caller; `param` and `code` come from the upstream's error object, bounded and cleaned, or are what
    clients of OpenAI act on.
    """

    owner = "request"
    fall_back = False
    gateway_failure = False

    def __init__(
        self,
        public: str,
        *,
        deployment_id: str,
        status: int,
        error_type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        reason: str | None = None,
        elsewhere: bool | None = None,
    ) -> None:
        super().__init__(public, deployment_id=deployment_id, status=status, detail=public, reason=reason)
        self.error_type = error_type
        self.param = param
        self.code = code
        self.parameter: RefusedParameter | None = None
        """The parameter that was refused by its name."""
        if elsewhere is not None:
            self.fall_back = elsewhere


class CannotCarry(RequestRejected):
    """The deployment cannot take the request and was not sent it; the next candidate may take it.

    It says nothing about the deployment's health. When no candidate can take it, the caller sees this refusal.
    """

    fall_back = True


class PromptTooLong(RequestRejected):
    """The upstream counted more tokens than its model's context holds; a larger candidate may take it."""

    fall_back = True
