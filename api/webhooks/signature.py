"""Signatures of Standard Webhooks 1.0: HMAC-SHA256 over `id.timestamp.body`."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

_PREFIX: Final = "whsec_"
_FEWEST_BYTES: Final = 24
_MOST_BYTES: Final = 64


class BadSecret(ValueError):
    """A signing secret violates Standard Webhooks. The message never shows it."""


def signing_key(secret: str) -> bytes:
    """Return the decoded bytes of a `whsec_…` secret. Raises BadSecret."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True) if secret.startswith(_PREFIX) else b""
    except (binascii.Error, ValueError):
        key = b""
    if not _FEWEST_BYTES <= len(key) <= _MOST_BYTES:
        raise BadSecret(
            f"the secret must be `{_PREFIX}` and the base64 of {_FEWEST_BYTES} to {_MOST_BYTES} random bytes, such as "
            f'`echo {_PREFIX}"$(openssl rand -base64 32)"` makes'
        )
    return key


def signed_headers(message_id: str, sent_s: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the three headers of a signed message. With two keys either signature verifies, so that receivers can rotate
    secrets.
    """
    signed = b".".join((message_id.encode("ascii"), str(sent_s).encode(), body))
    signatures = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(sent_s),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
