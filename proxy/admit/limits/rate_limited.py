"""The error for a request whose rate limit is used up."""

import msgspec

from proxy.admit.limits.limit import Kind, Scope
from proxy.errors import Refused
from proxy.http.reply_head import fields_of


class RateLimited(Refused, status=429, code="rate_limit_exceeded"):
    """A rate limit is used up (429). Carries the same headers as an admission."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None,
        scope: Scope,
        kind: Kind,
        lines: bytes = b"",
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, should_retry=should_retry)
        if kind == "tokens":
            # OpenAI names the limit here: requests or tokens.
            self.fault = msgspec.structs.replace(self.fault, type="tokens")
        self.scope = scope
        self.kind = kind
        self.headers = tuple(fields_of(lines))
