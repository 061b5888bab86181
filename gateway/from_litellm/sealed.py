"""Opening of what LiteLLM seals in its database: models' parameters and variables, under the SHA-256 of its salt key.

New values are AES-256-GCM behind `v2:gcm:`, older ones NaCl's SecretBox (XSalsa20 and Poly1305). The package `cryptography` has Poly1305
and not Salsa20, of which opening a few short values needs little: it is here.
"""

import base64
import binascii
import hashlib
import struct
from typing import Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.poly1305 import Poly1305

_GCM: Final = "v2:gcm:"
_GCM_NONCE: Final = 12
_NONCE: Final = 24
_TAG: Final = 16
_KEY: Final = 32
_BLOCK: Final = 64
_SIGMA: Final = struct.unpack("<4I", b"expand 32-byte k")
_MOST_CHARS: Final = 200_000
_ROUNDS: Final = 10
_WORD: Final = 0xFFFFFFFF
_COLUMNS: Final = ((0, 4, 8, 12), (5, 9, 13, 1), (10, 14, 2, 6), (15, 3, 7, 11))
_ROWS: Final = ((0, 1, 2, 3), (5, 6, 7, 4), (10, 11, 8, 9), (15, 12, 13, 14))


class NotOpened(Exception):
    """A value is not sealed under this key, or is not sealed at all."""


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
    except (ValueError, InvalidTag, InvalidSignature, binascii.Error) as failure:
        raise NotOpened from failure


def _bytes_of(value: str) -> bytes:
    """Return the bytes of base64 with either alphabet; anything else is no sealed value."""
    return base64.b64decode(value.replace("-", "+").replace("_", "/"), validate=True)


def _secret_box(sealed: bytes, key: bytes) -> bytes:
    if len(sealed) < _NONCE + _TAG:
        raise NotOpened
    nonce, tag, text = sealed[:_NONCE], sealed[_NONCE : _NONCE + _TAG], sealed[_NONCE + _TAG :]
    stream = _xsalsa20(key, nonce, _KEY + len(text))
    Poly1305.verify_tag(stream[:_KEY], text, tag)
    return bytes(a ^ b for a, b in zip(text, stream[_KEY:], strict=True))


def _xsalsa20(key: bytes, nonce: bytes, length: int) -> bytes:
    """Return so many bytes of the stream."""
    inner = _state(key, nonce[:16])
    mixed = _rounds(inner)
    own_key = struct.pack("<8I", *(mixed[place] for place in (0, 5, 10, 15, 6, 7, 8, 9)))
    stream = bytearray()
    for counter in range(-(-length // _BLOCK)):
        state = _state(own_key, nonce[16:] + struct.pack("<Q", counter))
        stream += struct.pack("<16I", *((a + b) & _WORD for a, b in zip(state, _rounds(state), strict=True)))
    return bytes(stream[:length])


def _state(key: bytes, inputs: bytes) -> list[int]:
    k, n, s = struct.unpack("<8I", key), struct.unpack("<4I", inputs), _SIGMA
    return [s[0], *k[:4], s[1], *n, s[2], *k[4:], s[3]]


def _rounds(state: list[int]) -> list[int]:
    x = list(state)
    for _ in range(_ROUNDS):
        for a, b, c, d in (*_COLUMNS, *_ROWS):
            x[b] ^= _turned(x[a] + x[d], 7)
            x[c] ^= _turned(x[b] + x[a], 9)
            x[d] ^= _turned(x[c] + x[b], 13)
            x[a] ^= _turned(x[d] + x[c], 18)
    return x


def _turned(number: int, bits: int) -> int:
    number &= _WORD
    return ((number << bits) | (number >> (32 - bits))) & _WORD
