"""How entries hang together: each hash covers its entry and the hash before it, so that none can be changed alone."""

import hashlib
import json
from typing import Any, Final

import msgspec

from accounts.audit.entry import Entry

FIRST: Final = "0" * 64
"""What the first entry has before it."""
_VERSION: Final = "weighbridge-audit-1"
_COVERED: Final = tuple(name for name in Entry.__struct_fields__ if name != "hash")


def hash_of(entry: Entry) -> str:
    """SHA-256 of everything that the entry says, the previous hash included. JSON keeps neighbours apart."""
    said = [_VERSION, *(getattr(entry, name) for name in _COVERED)]
    return hashlib.sha256(canonical(said).encode()).hexdigest()


def sealed(entry: Entry) -> Entry:
    """The entry with its hash."""
    return msgspec.structs.replace(entry, hash=hash_of(entry))


def canonical(value: Any) -> str:
    """The one JSON text of a plain value."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
