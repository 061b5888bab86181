"""One entry of the audit log: who did what to which object, from where, and what that changed."""

import json
from typing import Any, Literal

import msgspec

from accounts.access import Principal

ActorKind = Literal["person", "key", "console", "gateway"]
"""Somebody who signed in, an API key, somebody at the command line, or the gateway by itself."""


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who did it, and from where."""

    kind: ActorKind
    actor_id: str
    name: str
    organisation_id: str
    address: str = ""

    @classmethod
    def of_principal(cls, principal: Principal, address: str = "") -> "Actor":
        """Somebody who signed in, or a key's owner."""
        return cls(
            kind=principal.kind,
            actor_id=principal.principal_id,
            name=principal.name,
            organisation_id=principal.organisation_id,
            address=address,
        )


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One field that is not as it was. None: it was, or is, not there."""

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

    def differences(self) -> list[Difference]:
        """Field by field what changed, in the order of their names."""
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
        # Somebody changed it; that is for `verify` to say, and the page shows what is there.
        return {"": text}


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """`{"limits": {"burst": 5}}` as `limits.burst: 5`."""
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
