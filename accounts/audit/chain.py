"""The hash chain: each hash covers its entry and the hash before it, so that no entry can be changed alone."""

import hashlib
import json
from typing import Any, Final

import msgspec

from accounts.audit.entry import Entry

FIRST: Final = "0" * 64
"""The previous hash of the first entry."""
_VERSION: Final = "weighbridge-audit-1"
_COVERED: Final = tuple(name for name in Entry.__struct_fields__ if name != "hash")


def hash_of(entry: Entry) -> str:
    """Return the SHA-256, in hexadecimal, of the canonical JSON list of every field but the hash, the previous hash
    included.
    """
    covered = [_VERSION, *(getattr(entry, name) for name in _COVERED)]
    return hashlib.sha256(canonical(covered).encode()).hexdigest()


def sealed(entry: Entry) -> Entry:
    """Return a copy of the entry with its hash filled in."""
    return msgspec.structs.replace(entry, hash=hash_of(entry))


def canonical(value: Any) -> str:
    """Return the canonical JSON text of a plain value: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
