"""Opening of what LiteLLM seals in its database: models' parameters and variables, under the SHA-256 of its salt key.

NaCl's SecretBox, which PyNaCl opens (extra `litellm`), unless LiteLLM is set to AES-256-GCM, whose values begin with `v2:gcm:`.
"""

import base64
import hashlib
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_GCM: Final = "v2:gcm:"
_GCM_NONCE: Final = 12
_LEAST_BOX: Final = 40
"""Bytes of a box around nothing: its nonce and its tag."""
_MOST_CHARS: Final = 200_000


class NotOpened(Exception):
    """A value is not sealed under this key, or is not sealed at all."""


class NeedsPyNaCl(NotOpened):
    """A value may be a SecretBox, and PyNaCl is not installed."""


def open_sealed(value: str, salt_key: str) -> str:
    """Return what a value seals. Raises NotOpened."""
    key = hashlib.sha256(salt_key.encode()).digest()
    if len(value) > _MOST_CHARS:
        raise NotOpened
    try:
        if value.startswith(_GCM):
            sealed = base64.urlsafe_b64decode(value.removeprefix(_GCM))
            return AESGCM(key).decrypt(sealed[:_GCM_NONCE], sealed[_GCM_NONCE:], None).decode()
        return _secret_box(_bytes_of(value), key).decode()
    except (ValueError, InvalidTag) as failure:
        raise NotOpened from failure


def _bytes_of(value: str) -> bytes:
    """Return the bytes of base64 with either alphabet; anything else is no sealed value."""
    return base64.b64decode(value.replace("-", "+").replace("_", "/"), validate=True)


def _secret_box(sealed: bytes, key: bytes) -> bytes:
    if len(sealed) < _LEAST_BOX:
        raise NotOpened
    try:
        # Only here: a gateway that serves needs none.
        from nacl.exceptions import CryptoError  # noqa: PLC0415
        from nacl.secret import SecretBox  # noqa: PLC0415
    except ImportError as failure:
        raise NeedsPyNaCl from failure
    try:
        return SecretBox(key).decrypt(sealed)
    except CryptoError as failure:
        raise NotOpened from failure
