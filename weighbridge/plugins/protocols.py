"""What a plug-in of each kind has to have.

`protocol` is the number in `PROTOCOLS` that it was written for; the gateway's own version plays no part. A plug-in may
declare `Settings`, a dataclass, msgspec struct or pydantic model: it is then made with an instance of it, checked before,
and otherwise with nothing. One that has an `aclose()` coroutine is closed at the end.

One instance serves all requests of a process, many at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from weighbridge.plugins.facts import (
    Call,
    Candidate,
    Identity,
    Kind,
    Outcome,
    Outgoing,
    RequestFacts,
    Score,
    Text,
    Verdict,
)

PROTOCOLS: Final[Mapping[Kind, int]] = {"guard": 1, "scorer": 1, "exporter": 1, "authenticator": 1, "dialect": 1}
"""The newest number of each kind."""


class Guard(Protocol):
    """Judges what comes in and what goes out. Whoever raises or is late has not judged, so nothing passes."""

    protocol: int

    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict: ...


class Scorer(Protocol):
    """Vetoes candidates or makes them dearer. Pure and quick: no files, no network, the same answer for the same facts."""

    protocol: int

    def score(self, facts: RequestFacts, candidates: Sequence[Candidate]) -> Sequence[Score]:
        """Return what there is to say; a candidate that is not named stays as it is. Nothing can be added."""
        ...


class Exporter(Protocol):
    """Takes finished requests somewhere, in batches, each outcome once."""

    protocol: int

    async def finished(self, outcomes: Sequence[Outcome]) -> None:
        """Deliver them. A batch that raises or is late is counted as lost, and not brought again."""
        ...


class Authenticator(Protocol):
    """Knows callers who bring no key of the gateway."""

    protocol: int

    async def caller(self, headers: Mapping[str, str]) -> Identity | None:
        """Return who it is; None where this plug-in does not know. `headers` are those that the configuration grants, by lower-case name."""
        ...


class ReplyReader(Protocol):
    """Reads one reply."""

    def whole(self, payload: bytes) -> Mapping[str, Any]:
        """Return a whole reply as a `chat.completion`."""
        ...

    def event(self, payload: bytes) -> Mapping[str, Any] | None:
        """Return the data of one server-sent event as a `chat.completion.chunk`; None where it says nothing."""
        ...


class Dialect(Protocol):
    """Speaks to an upstream that knows no OpenAI: writes its requests, reads its replies. Pure, as a scorer is."""

    protocol: int

    def request(self, body: Mapping[str, Any], call: Call) -> Outgoing:
        """Write a request. `body` is that of /v1/chat/completions, with the upstream's name of the model."""
        ...

    def reader(self, call: Call) -> ReplyReader: ...
