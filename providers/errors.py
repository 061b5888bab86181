"""One tree for everything that can go wrong between us and an upstream.

Each error knows its source, whether another attempt makes sense and whether it counts against the
deployment's health. `proxy/errors.py` turns it into HTTP in one table.
"""


class UpstreamError(Exception):
    """An attempt failed. `public` is safe to show to a caller: no upstream body, no key."""

    retry_same: bool = False
    """Another try at the same deployment may help."""
    fall_back: bool = True
    """The next candidate may help; False when the request itself is at fault."""
    gateway_failure: bool = True
    """Counts against the deployment in its breaker."""

    def __init__(
        self, public: str, *, deployment_id: str, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(public)
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

    The upstream may have done the work, and charged for it. Another try stays allowed all the same:
    a replica that is killed is to be hidden from callers, and nothing of an answer has been shown.
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
    """A replica of ours is down by its probes, and had not said a word yet: another one may."""

    retry_same = True


class StreamCut(UpstreamError):
    """The connection ended before the stream's end marker."""


class MalformedReply(UpstreamError):
    """The upstream broke its wire: bad JSON, an oversized event, not SSE."""


class UpstreamRefusedUs(UpstreamError):
    """401, 403 or 404 from the upstream: our key, permission or model name is wrong, not the caller's."""

    gateway_failure = False


class RequestRejected(UpstreamError):
    """The request itself was found at fault (400, 413, 422): no other attempt will help.

    `param` and `code` come from the upstream's error object, bounded and stripped.
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
        super().__init__(public, deployment_id=deployment_id, status=status)
        self.error_type = error_type
        self.param = param
        self.code = code


class CannotCarry(RequestRejected):
    """The deployment cannot take the request, and was not sent it; the next candidate may take it.

    Nothing was learnt about the deployment's health. When no candidate can, the caller sees the refusal.
    """

    fall_back = True


class PromptTooLong(RequestRejected):
    """The upstream counted more tokens than its model's context holds; a larger candidate may take it."""

    fall_back = True
