"""A sign-in that was begun, as a short-lived cookie remembers it.

The cookie carries a random seed. What goes to the provider (state, nonce, PKCE's verifier) is made of the seed under a
key that only the gateway has, so that the cookie alone reveals none of it, and nothing of it is stored.
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
"""More than this process sees in the time that a cookie is good for, at 150 callbacks a second."""
_SECOND_US: Final = 1_000_000


class PendingSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """What the callback must fit."""

    seed: str
    provider: str
    next_path: str
    expires_us: int


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """What ties the provider's answer to the browser that asked."""

    state: str
    nonce: str
    verifier: str

    def __repr__(self) -> str:
        return "Secrets(<hidden>)"


class PendingSignIns:
    """Makes such cookies, knows its own again, and takes each once."""

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
        """A sign-in of its own, good for ten minutes. A `next_path` that no cookie can hold is forgotten."""
        return PendingSignIn(
            seed=self._random_bytes(SEED_BYTES).hex(),
            provider=provider,
            next_path=next_path if len(next_path) <= MAX_NEXT_CHARS else "",
            expires_us=self._now_us() + LASTS_S * _SECOND_US,
        )

    def cookie(self, begun: PendingSignIn) -> str:
        """Its cookie's value."""
        body = _encoded(msgspec.json.encode(begun))
        return f"{body}.{self._signature(body)}"

    def read(self, cookie: str) -> PendingSignIn | None:
        """The sign-in that a cookie remembers; None if it is not ours or too old."""
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
        """The same for the same seed."""
        return Secrets(
            state=self._value("state", begun),
            nonce=self._value("nonce", begun),
            verifier=self._value("verifier", begun),
        )

    def take(self, begun: PendingSignIn) -> bool:
        """Whether this process sees it for the first time; each is good once.

        Strangers can begin sign-ins and come back with them, so a full memory must shut nobody out, nor take long: the
        oldest is forgotten. Whoever had its cookie still needs a code that the provider takes once, too.
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
