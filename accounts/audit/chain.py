"""The hash chain: each hash covers its entry and the hash before it, so that no entry can be changed alone."""

import hashlib
import json
import secrets
from typing import Any, Final

import msgspec

from accounts.audit.entry import Entry

FIRST: Final = "0" * 64
"""The previous hash of the first entry."""
_VERSION: Final = "weighbridge-audit-1"
_SALTED: Final = "weighbridge-audit-2"
_REDACTED: Final = "weighbridge-audit-redacted-1"
_SALT_BYTES: Final = 16
_COVERED: Final = tuple(name for name in Entry.__struct_fields__ if name not in {"hash", "salt", "redacted"})


def hash_of(entry: Entry) -> str:
    """Return the SHA-256, in hexadecimal, of the canonical JSON list of every field but the hash, the previous hash
    included, and the salt where there is one.
    """
    covered = [_VERSION, *_fields(entry)] if not entry.salt else [_SALTED, *_fields(entry), entry.salt]
    return _digest(covered)


def sealed(entry: Entry) -> Entry:
    """Return a copy of the entry with a salt, and its hash filled in."""
    salted = msgspec.structs.replace(entry, salt=secrets.token_hex(_SALT_BYTES))
    return msgspec.structs.replace(salted, hash=hash_of(salted))


def digest_of_redacted(entry: Entry) -> str:
    """Return the digest by which a later entry vouches for what is left of this one: of all of it, its old hash included."""
    return _digest([_REDACTED, *_fields(entry), entry.hash])


def _fields(entry: Entry) -> list[Any]:
    return [getattr(entry, name) for name in _COVERED]


def _digest(covered: list[Any]) -> str:
    return hashlib.sha256(canonical(covered).encode()).hexdigest()


def canonical(value: Any) -> str:
    """Return the canonical JSON text of a plain value: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
