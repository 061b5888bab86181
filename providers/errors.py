"""The error hierarchy for everything that can go wrong between the gateway and an upstream.

Each class says whether a retry or a fallback makes sense, and whether it counts against the deployment's health.
`proxy/errors.py` maps it to HTTP in one table.
"""

import msgspec


class Original(msgspec.Struct, frozen=True):
    """A provider's own error, word for word but for our keys."""

    status: int
    type: str
    message: str


class UpstreamError(Exception):
    """A failed attempt. `public` is safe to show to a caller: no upstream body, no key."""

    original: Original | None = None
    """What the provider said, where callers of its own wire may read it: their recovery goes by its words."""

    retry_same: bool = False
    """A retry at the same target may help."""
    fall_back: bool = True
    """A fallback to the next candidate may help; False when the request itself is at fault."""
    gateway_failure: bool = True
    """The deployment's circuit breaker counts it."""

    key_refused: bool = False
    """The upstream takes our key, or our account, for no good: no call can succeed until operators mend it."""

    def __init__(
        self,
        public: str,
        *,
        deployment_id: str,
        status: int | None = None,
        retry_after_s: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(public)
        self.detail = detail
        """The upstream's own words for operators, on one line, bounded and with keys masked; no caller sees them."""
        self.public = public
        self.deployment_id = deployment_id
        self.status = status
        self.retry_after_s = retry_after_s


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
    """The upstream answered 429. It is healthy, so its breaker does not count it."""

    gateway_failure = False


class FirstTokenTimeout(UpstreamError):
    """No real token within the first-token deadline; nothing was sent to the caller yet."""


class UpstreamTimeout(UpstreamError):
    """The stream went silent, or the whole answer took too long."""


class ReplicaSilent(UpstreamTimeout):
    """A replica of our own is down by its health checks and had sent nothing yet; another one may answer."""

    retry_same = True


class StreamCut(UpstreamError):
    """The connection ended before the stream's end marker."""


class MalformedReply(UpstreamError):
    """The upstream violated its protocol: bad JSON, an oversized event, not SSE."""


class UpstreamRefusedUs(UpstreamError):
    """401 to 404 from the upstream: our key, account, permission or model name is wrong, not the caller's."""

    gateway_failure = False


class RequestRejected(UpstreamError):
    """The request itself was found at fault (400, 413, 422): no other attempt will help.

    `param` and `code` come from the upstream's error object, bounded and cleaned.
    """

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
    ) -> None:
        super().__init__(public, deployment_id=deployment_id, status=status, detail=public)
        self.error_type = error_type
        self.param = param
        self.code = code


class CannotCarry(RequestRejected):
    """The deployment cannot take the request and was not sent it; the next candidate may take it.

    It says nothing about the deployment's health. When no candidate can take it, the caller sees this refusal.
    """

    fall_back = True


class PromptTooLong(RequestRejected):
    """The upstream counted more tokens than its model's context holds; a larger candidate may take it."""

    fall_back = True
