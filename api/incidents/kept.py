"""An incident as it is kept, and what a look at the gateway changes in those that are. Pure."""

from collections.abc import Iterable, Sequence
from hashlib import blake2s
from typing import Any, Final, Protocol

import msgspec

QUIET_US: Final = 120_000_000
"""The time without it after which an incident is closed. Until then it may begin again at any moment."""
AGAIN_US: Final = 600_000_000
"""The time after its end in which the same trouble is the same incident."""
ELSEWHERE_US: Final = 45_000_000
"""The time for which the word of another host stands."""
MOST_SHARES: Final = 500
"""The teams and models of an incident that are kept by name: those with most requests."""
_TEXT_CHARS: Final = 2_000
_NAME_CHARS: Final = 300
_MOST_NAMES: Final = 200
_RANKS: Final = ("warn", "bad")


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one team for one model that an incident hurt. Each is counted once."""

    organisation_id: str
    team_id: str
    model: str
    requests: int
    refused: int = 0
    """Those of them whose callers were told an error; the others were answered late, or by another try."""


class Seen(Protocol):
    """An incident as it is now (`api.operations.incidents.Incident`)."""

    @property
    def severity(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def advice(self) -> str: ...
    @property
    def href(self) -> str: ...
    @property
    def since_us(self) -> int | None: ...
    @property
    def also(self) -> tuple[str, ...]: ...
    @property
    def place(self) -> str: ...
    @property
    def places(self) -> tuple[str, ...]: ...
    @property
    def targets(self) -> tuple[str, ...]: ...
    @property
    def hurt(self) -> tuple[Share, ...]: ...
    @property
    def requests(self) -> int | None: ...
    @property
    def refused(self) -> int | None: ...
    @property
    def teams(self) -> int | None: ...
    @property
    def keys(self) -> int | None: ...


class KeptIncident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident of the history, open or closed."""

    incident_id: str
    place: str
    places: tuple[str, ...]
    targets: tuple[str, ...]
    kind: str
    severity: str
    subject: str
    text: str
    advice: str
    href: str
    also: tuple[str, ...]
    opened_us: int
    seen_us: int
    seen_by: str
    closed_us: int = 0
    """Its end: when it was seen last; 0 while it is open."""
    requests: int | None = None
    refused: int | None = None
    teams: int | None = None
    keys: int | None = None
    part_of: str = ""

    @property
    def is_open(self) -> bool:
        return not self.closed_us

    def is_there(self, boot_id: str, now_us: int) -> bool:
        """Return True where another host saw it just now; what this one saw is known better here."""
        return self.seen_by != boot_id and self.seen_us > now_us - ELSEWHERE_US


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An incident to save, with those whom it hurt."""

    kept: KeptIncident
    hurt: tuple[Share, ...] = ()


def matching(places: Iterable[str], kept: Sequence[KeptIncident]) -> list[KeptIncident]:
    """Return the incidents that share a place with these, the oldest first."""
    among = frozenset(places)
    return sorted(
        (each for each in kept if not among.isdisjoint(each.places)),
        key=lambda each: (each.opened_us, each.incident_id),
    )


def changes(found: Iterable[Seen], kept: Sequence[KeptIncident], boot_id: str, now_us: int) -> list[Change]:
    """Return what to save. `kept` are those that are open, or were until just now. What turns out to be one outage goes on as the
    oldest of its incidents, and the others are parts of it.
    """
    changed: dict[str, Change] = {}
    for each in found:
        same = matching(each.places, [one for one in kept if one.incident_id not in changed])
        after = _after(each, same[0] if same else None, boot_id, now_us)
        changed[after.incident_id] = Change(kept=after, hurt=each.hurt[:MOST_SHARES])
        for part in same[1:]:
            if part.is_open:
                ended = msgspec.structs.replace(part, closed_us=now_us, part_of=after.incident_id)
                changed[part.incident_id] = Change(kept=ended)
    for one in kept:
        if one.incident_id not in changed and one.is_open and one.seen_us < now_us - QUIET_US:
            changed[one.incident_id] = Change(kept=msgspec.structs.replace(one, closed_us=max(one.seen_us, 1)))
    return list(changed.values())


def _after(seen: Seen, before: KeptIncident | None, boot_id: str, now_us: int) -> KeptIncident:
    opened_us = now_us if seen.since_us is None else seen.since_us
    new = KeptIncident(
        incident_id=f"inc_{blake2s(f'{seen.place}|{opened_us // AGAIN_US}'.encode(), digest_size=6).hexdigest()}",
        place=seen.place[:_NAME_CHARS],
        places=seen.places[:_MOST_NAMES],
        targets=seen.targets[:_MOST_NAMES],
        kind=seen.kind,
        severity=seen.severity,
        subject=seen.subject[:_NAME_CHARS],
        text=seen.text[:_TEXT_CHARS],
        advice=seen.advice[:_TEXT_CHARS],
        href=seen.href[:_NAME_CHARS],
        also=seen.also[:_MOST_NAMES],
        opened_us=opened_us,
        seen_us=now_us,
        seen_by=boot_id,
        requests=seen.requests,
        refused=seen.refused,
        teams=seen.teams,
        keys=seen.keys,
    )
    if before is None:
        return new
    weaker = _RANKS.index(new.severity) < _RANKS.index(before.severity)
    told: dict[str, Any] = {
        "incident_id": before.incident_id,
        "opened_us": min(before.opened_us, opened_us),
        # Whom it hurt it has hurt, also once a part of it is well again.
        "targets": tuple(sorted({*before.targets, *new.targets}))[:_MOST_NAMES],
        **{name: more(getattr(before, name), getattr(new, name)) for name in ("requests", "refused", "teams", "keys")},
    }
    if weaker:
        # What remains of it is less than what it was.
        names = ("kind", "severity", "subject", "place", "text", "advice", "href", "also")
        told |= {name: getattr(before, name) for name in names}
    return msgspec.structs.replace(new, **told)


def more(before: int | None, now: int | None) -> int | None:
    """Return the larger number; None where none is known."""
    return max((each for each in (before, now) if each is not None), default=None)
