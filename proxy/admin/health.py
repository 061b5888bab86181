"""The readiness of a worker for traffic, and the checks behind it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Self

import msgspec

from cost.ledger.journal import JournalState
from cost.ledger.segments import Waiting
from cost.times import wall_us
from proxy.pipeline import RequestPipeline

HTTP_OK: Final = 200
HTTP_UNAVAILABLE: Final = 503
_JOURNAL_OLD_S: Final = 60.0


class Journals(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that this host's processes, dead ones included, booked and the database does not have yet."""

    processes: int
    """The number of processes with a waiting entry."""
    waiting: int
    """Entries that wait."""
    oldest_s: float
    """Seconds for which the oldest has waited; 0 if none waits."""


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to who asks for readiness before anything serves."""

    status: str = "starting"
    checks: dict[str, bool]
    reason: str

    @property
    def http_status(self) -> int:
        """503, as there should be no traffic."""
        return HTTP_UNAVAILABLE

    @property
    def control_plane_status(self) -> int:
        """503, likewise."""
        return HTTP_UNAVAILABLE

    @classmethod
    def of(cls, *, database: bool, control_plane: bool) -> Self:
        """Return what is missing."""
        checks = {"accepting": False, "database": database, "control_plane": control_plane}
        missing = {name: holds for name, holds in checks.items() if name != "accepting"}
        return cls(checks=checks, reason=_reason(missing) or "models are being opened")


_FAILED: Final = {
    "accepting": "this process takes no work",
    "ledger": "the journal takes no entries: is its disk full?",
    "journals": "entries wait in journals for over a minute",
    "database": "the database takes no writes",
    "control_plane": "the control plane is away",
    "plugins": "plug-ins were late and are taken out",
}
"""What it means that a check fails; the first two make a process not ready."""


def _reason(checks: Mapping[str, bool]) -> str:
    return "; ".join(_FAILED[name] for name, holds in checks.items() if not holds)


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The readiness for traffic, the checks behind it, the waiting entries of the journals, and the classifier in
    use.
    """

    status: str
    reason: str
    """Every check that fails, in words; empty where none does."""
    checks: dict[str, bool]
    journals: Journals
    classifier: dict[str, str | None]

    @property
    def http_status(self) -> int:
        """503 while the worker should get no traffic."""
        return HTTP_OK if self.status == "ready" else HTTP_UNAVAILABLE

    @property
    def control_plane_status(self) -> int:
        """503 while it should get no pages and changes either: they need the control plane, and a database that takes writes."""
        needs = self.checks["database"] and self.checks["control_plane"]
        return self.http_status if needs else HTTP_UNAVAILABLE


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of a worker's readiness."""

    pipeline: RequestPipeline
    journal: Callable[[], JournalState]
    backlog: Callable[[], Awaitable[list[Waiting]]]
    """The entries that wait in the journals of this host."""
    control_plane: Callable[[], bool]
    """True while the control plane is there."""
    database: Callable[[], Awaitable[bool]]
    """True when the database answers."""
    fallback_reason: Callable[[], str | None]
    """The reason for which the heuristic classifies; None while the trained model does."""
    plugins: tuple[str, ...] = ()
    """The names of the plug-ins."""
    plugins_out: Callable[[], tuple[str, ...]] = tuple
    """The names of those that are taken out now."""
    now_us: Callable[[], int] = wall_us

    async def look(self) -> Readiness:
        """Return the readiness now. 503 while the process leaves or drains, or its journal accepts no entries. Neither the
        database nor the control plane is a reason to leave: known keys are served from memory, and the journal holds
        the books. Nor is the heuristic: it serves, with less accuracy; nor a plug-in, without which some are served.
        """
        journals = _sum(await self.backlog(), self.now_us())
        checks = {
            "accepting": not (self.pipeline.leaving or self.pipeline.draining),
            "ledger": self.journal().accepting,
            "journals": journals.oldest_s < _JOURNAL_OLD_S,
            "database": await self.database(),
            "control_plane": self.control_plane(),
        }
        out = self.plugins_out()
        if self.plugins:
            checks["plugins"] = not out
        fallback = self.fallback_reason()
        return Readiness(
            status="ready" if checks["accepting"] and checks["ledger"] else "not ready",
            reason=_reason(checks) + (f" ({', '.join(out)})" if out else ""),
            checks=checks,
            journals=journals,
            classifier={"in_use": "onnx" if fallback is None else "heuristic", "fallback_reason": fallback},
        )


def _sum(found: Sequence[Waiting], now_us: int) -> Journals:
    behind = [each for each in found if each.entries]
    oldest_us = min((each.oldest_at_us for each in behind if each.oldest_at_us is not None), default=None)
    return Journals(
        processes=len(behind),
        waiting=sum(each.entries for each in behind),
        oldest_s=0.0 if oldest_us is None else round(max(0.0, (now_us - oldest_us) / 1_000_000), 3),
    )
