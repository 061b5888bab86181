"""Shadow price: the cost of one more request on our own GPUs, for choosing a target. Pure; the books know nothing of
it.

The hours of a pool that is up are paid for whether or not anybody uses them. While it has room, one more request costs
next to nothing; as it fills, each request displaces another that must then be bought elsewhere. So the price of one
more rises with the expected wait, from nearly nothing up to the price of the cheapest capable alternative. At that
price the request goes elsewhere.

That point differs from request to request, by a hash of its id, so that several processes that read the same snapshot
send a part of the requests elsewhere, which grows with the wait, and never all of them at once.
"""

import hashlib
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from providers.target import Target
from proxy.admit.queues.queue_item import QueueItem

MarginWhy = Literal["", "bought", "average", "own-room", "own-filling", "own-full"]
"""The origin of a margin. `bought`: it is the price that is paid; `average`: our own GPUs at their average price,
because their room is not known, no hours are up, or the configuration asks for it; `own-room`, `own-filling`,
`own-full`: our own GPUs by their room. Empty where nothing was compared, as for a model that the caller named.
"""

RESTING_PARTS: Final = 100
"""The part of its average price that a request costs with room: not nothing, so that of two pools with room the
lighter one is chosen, and of two places in it the one that has the conversation cached.
"""
_ROOM: Final = 0.25
"""The share of the load that a request bears up to which a pool counts as having room."""
SPREAD: Final = 0.5
"""The share of the aim over which requests go elsewhere: the first at half of it, the last when it is reached."""
_FREE: Final = 0.2
"""The last part of the room of a pool without a queue. A queue's wait rises; a full pool is a wall, so its price has to
rise before that."""
_PPM: Final = 1_000_000
_KEY: Final = b"weighbridge margin"
"""The hash key that makes this draw independent of every other draw from a request's id."""
_SPAN: Final = 1 << 64


class Room(msgspec.Struct, frozen=True):
    """The room of a pool for one request."""

    wait_s: float
    """Expected seconds until its prompt would be read."""
    aim_s: float
    """Seconds that the tier allows to the first token; infinite without an aim."""
    fill: float = 0.0
    """The share of the room that is taken, where nothing queues before the pool; from 1 on it is full."""

    @property
    def load(self) -> float:
        """The expected wait as a share of the aim, or the nearness of the wall where that is more. From 1 on there is
        no room.
        """
        return max(self.wait_s / self.aim_s if self.aim_s > 0 else 1.0, 1.0 - (1.0 - self.fill) / _FREE)


class Rooms(msgspec.Struct, frozen=True):
    """The rooms of the targets that are priced by the margin, and the request's place among all requests, 0 to 1."""

    by_target: dict[str, Room]
    place: float
    may_overflow: bool = True
    """False for a team whose requests stay on our own GPUs: those cost their average at most."""

    def has_room(self, target_id: str) -> bool:
        """Return True when the target's room is known, and there is some for this request."""
        room = self.by_target.get(target_id)
        return room is not None and _borne(room, self.place) < 1.0


NO_ROOMS: Final = Rooms({}, 0.0)
"""No room is known, so everything is priced at its average."""


class TargetCapacity(Protocol):
    """The free capacity of targets as the process knows it, from queues and replicas."""

    def expect(self, target: Target, work: QueueItem, prompt_tokens: int, aim_s: float) -> Room | None: ...

    def starts_in_s(self, target: Target) -> float | None: ...

    def record_overflow(self, target: Target, tokens: int) -> None:
        """Record `tokens` of demand that go elsewhere for want of room, for the autoscaler."""


class Margin(NamedTuple):
    """The cost of one more request in nano-dollars, and its origin. `overflows`: the cheapest alternative comes
    first.
    """

    nanousd: int
    why: MarginWhy
    overflows: bool = False


def place_of(request_id: str) -> float:
    """Return the request's place from 0 to 1, drawn from a hash of its id, so that every process draws the same."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=8, key=_KEY).digest()
    return int.from_bytes(digest, "big") / _SPAN


def resting_nanousd(average_nanousd: int, alternative_nanousd: int | None) -> int:
    """Return the margin, in nano-dollars, while there is room."""
    resting = average_nanousd // RESTING_PARTS
    return resting if alternative_nanousd is None else min(resting, alternative_nanousd)


def margin(average_nanousd: int, alternative_nanousd: int | None, room: Room, place: float) -> Margin:
    """Return the margin of one request: monotone and continuous in the wait, from `resting_nanousd` up to the
    cheapest capable alternative's price. Without an alternative it is the average price, and the request stays.
    """
    resting = resting_nanousd(average_nanousd, alternative_nanousd)
    most = average_nanousd if alternative_nanousd is None else alternative_nanousd
    borne = _borne(room, place)
    if borne <= _ROOM:
        return Margin(resting, "own-room")
    if borne >= 1.0:
        return Margin(most, "own-full", alternative_nanousd is not None)
    pressure = int((borne - _ROOM) / (1.0 - _ROOM) * _PPM)
    return Margin(resting + (most - resting) * pressure // _PPM, "own-filling")


def _borne(room: Room, place: float) -> float:
    """Return the load as a share of the load that this request bears: one at place 0 bears the whole aim, one at
    place 1 the part of it that is not spread over.
    """
    return room.load / (1.0 - SPREAD * place)
