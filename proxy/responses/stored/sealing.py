"""Sealing of kept responses: compressed, then AES-256-GCM under a key of the team's own.

The key is derived from the pepper, which is not in the database, so a stolen database reveals no prompts. The row's
place is part of the authenticated data: a record that is moved to another team or name does not open.
"""

import asyncio
import functools
import secrets
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from accounts.keys import Pepper

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_PURPOSE: Final = b"weighbridge stored responses"
_LEVEL: Final = 1


class CannotOpen(Exception):
    """The record was sealed under a pepper that is gone, was changed, or stands in another's place."""


class Sealing:
    """The key ring: seals under the first pepper, and opens records of any of them."""

    def __init__(
        self, peppers: tuple[Pepper, ...], *, random_bytes: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._peppers = {pepper.id: pepper for pepper in peppers}
        self.pepper_id = peppers[0].id
        self._random_bytes = random_bytes

    async def ready(self) -> None:
        """Import everything that sealing and opening need, which would hold up the loop later."""
        if not _load.cache_info().currsize:
            await asyncio.to_thread(_load)

    def seal(self, team_id: str, response_id: str, record: bytes) -> bytes:
        nonce = self._random_bytes(_NONCE_BYTES)
        cipher = self._cipher(self.pepper_id, team_id)
        return nonce + cipher.encrypt(nonce, zlib.compress(record, _LEVEL), _place(team_id, response_id))

    def open(self, team_id: str, response_id: str, pepper_id: str, sealed: bytes, *, max_bytes: int) -> bytes:
        """Return the record. Raises CannotOpen."""
        if pepper_id not in self._peppers:
            raise CannotOpen(f"pepper {pepper_id!r} is not known")
        cipher = self._cipher(pepper_id, team_id)
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            compressed = cipher.decrypt(nonce, rest, _place(team_id, response_id))
        except (InvalidTag, ValueError) as error:
            raise CannotOpen("the record is not what was sealed in this place") from error
        return zlib.decompressobj().decompress(compressed, max_bytes)

    def _cipher(self, pepper_id: str, team_id: str) -> "AESGCM":
        return _load()(self._peppers[pepper_id].secret, team_id)


@functools.cache
def _load() -> Callable[[bytes, str], "AESGCM"]:
    # Six megabytes of a worker, for which only those have a use whose callers keep responses.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    def cipher(secret: bytes, team_id: str) -> AESGCM:
        key = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=team_id.encode(), info=_PURPOSE).derive(secret)
        return AESGCM(key)

    return cipher


def _place(team_id: str, response_id: str) -> bytes:
    return f"{team_id}\x00{response_id}".encode()
