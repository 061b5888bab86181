"""One entry of the audit log: actor, action, object, address, and the object's state before and after."""

import json
from typing import Any, Literal

import msgspec

from accounts.access import Principal

ActorKind = Literal["person", "key", "console", "gateway"]
"""A person who signed in, an API key, the command line, or the gateway itself."""


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """The party that made a change, and its network address."""

    kind: ActorKind
    actor_id: str
    name: str
    organisation_id: str
    address: str = ""

    @classmethod
    def of_principal(cls, principal: Principal, address: str = "") -> "Actor":
        """Return the actor for a principal: a person who signed in, or a key's owner."""
        return cls(
            kind=principal.kind,
            actor_id=principal.principal_id,
            name=principal.name,
            organisation_id=principal.organisation_id,
            address=address,
        )


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One field that changed. None: the field did not exist before, or does not after."""

    name: str
    before: str | None
    after: str | None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as stored. `before` and `after` are JSON, or empty where there was nothing."""

    number: int
    at_us: int
    organisation_id: str
    team_id: str
    actor_kind: str
    actor_id: str
    actor_name: str
    address: str
    action: str
    object_kind: str
    object_id: str
    reason: str
    before: str
    after: str
    previous_hash: str
    hash: str
    salt: str = ""
    """Random, and part of what is hashed, so that a text that was taken out cannot be guessed from the hash. Empty in entries from before
    it, and where a text was taken out.
    """
    redacted: int = 0
    """Number of the later entry that vouches for this one since personal data was taken out of it; 0 where nothing was."""

    def differences(self) -> list[Difference]:
        """Return the changed fields, with dotted names in alphabetical order."""
        before, after = _flat(_parsed(self.before)), _flat(_parsed(self.after))
        return [
            Difference(name=name, before=before.get(name), after=after.get(name))
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else {}
    except ValueError:
        # The row was tampered with; `verify` reports that, and the page shows the text as it is.
        return {"": text}


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Return the nested mappings as dotted names: `{"limits": {"burst": 5}}` as `limits.burst: 5`."""
    if isinstance(value, dict):
        return {
            found: shown
            for each, item in value.items()
            for found, shown in _flat(item, f"{name}.{each}" if name else str(each)).items()
        }
    return {name: value if isinstance(value, str) else _compact(value)}


def _compact(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)
