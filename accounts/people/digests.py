"""What is stored of a secret that its bearer shows: a digest under a pepper, which lies outside the database."""

import base64
import hmac
from collections.abc import Callable
from typing import Final, Literal

from accounts.keys import Pepper, usable_peppers

Purpose = Literal["session", "link", "account", "address"]
SECRET_BYTES: Final = 32
SECRET_CHARS: Final = 43


class Digests:
    """The digests of one kind of secret. Those of an older pepper are found as long as it is configured."""

    def __init__(self, purpose: Purpose, peppers: tuple[Pepper, ...]) -> None:
        self._purpose = purpose.encode() + b"\0"
        self._peppers = usable_peppers(peppers)

    def newest(self, secret: str) -> str:
        """What is stored from now on."""
        return self._under(self._peppers[0], secret)

    def any(self, secret: str) -> list[str]:
        """What may be stored already."""
        return [self._under(pepper, secret) for pepper in self._peppers]

    def _under(self, pepper: Pepper, secret: str) -> str:
        return hmac.digest(pepper.secret, self._purpose + secret.encode(), "sha256").hex()


def new_secret(random_bytes: Callable[[int], bytes]) -> str:
    """A secret that can stand in a cookie or a link."""
    return base64.urlsafe_b64encode(random_bytes(SECRET_BYTES)).rstrip(b"=").decode()


def is_secret(text: str) -> bool:
    """Whether it could be one; anything else is not worth a look into the database."""
    return len(text) == SECRET_CHARS and text.isascii() and text.replace("-", "a").replace("_", "a").isalnum()
