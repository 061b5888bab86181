"""Pending sign-ins, kept in a short-lived signed cookie.

The cookie carries a random seed. State, nonce and PKCE verifier are derived from the seed with a key that only the
gateway has, so that the cookie alone reveals none of them, and nothing is stored.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final

import msgspec

SEED_BYTES: Final = 32
LASTS_S: Final = 600
MAX_COOKIE_CHARS: Final = 3_800
MAX_NEXT_CHARS: Final = 1_500
MAX_USED: Final = 100_000
"""Most remembered callbacks; at 150 a second, fewer happen in a cookie's lifetime."""
_SECOND_US: Final = 1_000_000


class PendingSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """A pending sign-in, which the callback must match."""

    seed: str
    provider: str
    next_path: str
    expires_us: int


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """Values that tie the provider's callback to the browser that began the sign-in."""

    state: str
    nonce: str
    verifier: str

    def __repr__(self) -> str:
        return "Secrets(<hidden>)"


class PendingSignIns:
    """The issuer and verifier of cookies of pending sign-ins, which accepts each once."""

    def __init__(
        self,
        secret: bytes,
        *,
        now_us: Callable[[], int],
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        max_used: int = MAX_USED,
    ) -> None:
        self._signing = hmac.digest(secret, b"weighbridge sign-in cookie", "sha256")
        self._values = hmac.digest(secret, b"weighbridge sign-in values", "sha256")
        self._now_us = now_us
        self._random_bytes = random_bytes
        self._max_used = max_used
        self._used: dict[str, int] = {}

    def begin(self, provider: str, next_path: str) -> PendingSignIn:
        """Return a new pending sign-in, valid for ten minutes. A `next_path` too long for the cookie is dropped."""
        return PendingSignIn(
            seed=self._random_bytes(SEED_BYTES).hex(),
            provider=provider,
            next_path=next_path if len(next_path) <= MAX_NEXT_CHARS else "",
            expires_us=self._now_us() + LASTS_S * _SECOND_US,
        )

    def cookie(self, begun: PendingSignIn) -> str:
        """Return the signed cookie value."""
        body = _encoded(msgspec.json.encode(begun))
        return f"{body}.{self._signature(body)}"

    def read(self, cookie: str) -> PendingSignIn | None:
        """Return the pending sign-in of a cookie; None where it is forged, malformed or expired."""
        body, _, signature = cookie.partition(".")
        if len(cookie) > MAX_COOKIE_CHARS or not cookie.isascii():
            return None
        if not hmac.compare_digest(self._signature(body), signature):
            return None
        try:
            begun = msgspec.json.decode(urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=PendingSignIn)
        except ValueError:
            return None
        return begun if begun.expires_us > self._now_us() else None

    def secrets_of(self, begun: PendingSignIn) -> Secrets:
        """Return the secrets derived from the seed; the same each time."""
        return Secrets(
            state=self._value("state", begun),
            nonce=self._value("nonce", begun),
            verifier=self._value("verifier", begun),
        )

    def take(self, begun: PendingSignIn) -> bool:
        """Return True at the first use in this process; each sign-in is accepted once.

        Strangers can begin sign-ins and come back with them, so a full memory must lock nobody out, nor take long: the
        oldest is forgotten. Its cookie alone is no use: the provider accepts each code once, too.
        """
        if begun.seed in self._used:
            return False
        now_us = self._now_us()
        while self._used and (len(self._used) >= self._max_used or next(iter(self._used.values())) <= now_us):
            del self._used[next(iter(self._used))]
        self._used[begun.seed] = begun.expires_us
        return True

    def _signature(self, body: str) -> str:
        return _encoded(hmac.digest(self._signing, body.encode(), "sha256"))

    def _value(self, purpose: str, begun: PendingSignIn) -> str:
        return _encoded(hmac.digest(self._values, f"{purpose}:{begun.provider}:{begun.seed}".encode(), "sha256"))


def _encoded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
