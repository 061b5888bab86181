"""Digests under a pepper, which is what the database stores of secrets that a browser or a link presents."""

import base64
import hmac
from collections.abc import Callable
from typing import Final, Literal

from accounts.keys import Pepper, usable_peppers

Purpose = Literal["session", "link", "account", "address"]
SECRET_BYTES: Final = 32
SECRET_CHARS: Final = 43


class Digests:
    """HMAC-SHA256 digests of one purpose. Those of an older pepper match as long as it is configured."""

    def __init__(self, purpose: Purpose, peppers: tuple[Pepper, ...]) -> None:
        self._purpose = purpose.encode() + b"\0"
        self._peppers = usable_peppers(peppers)

    def newest(self, secret: str) -> str:
        """Return the digest under the current pepper, which is stored from now on."""
        return self._digest(self._peppers[0], secret)

    def any(self, secret: str) -> list[str]:
        """Return the digests under every configured pepper, any of which may be stored already."""
        return [self._digest(pepper, secret) for pepper in self._peppers]

    def _digest(self, pepper: Pepper, secret: str) -> str:
        return hmac.digest(pepper.secret, self._purpose + secret.encode(), "sha256").hex()


def new_secret(random_bytes: Callable[[int], bytes]) -> str:
    """Return a random secret of SECRET_CHARS characters, safe in a cookie and in a URL."""
    return base64.urlsafe_b64encode(random_bytes(SECRET_BYTES)).rstrip(b"=").decode()


def is_secret(text: str) -> bool:
    """Return True when the text has a secret's shape; anything else is not worth a query."""
    return len(text) == SECRET_CHARS and text.isascii() and text.replace("-", "a").replace("_", "a").isalnum()
