"""Whether the audit log is as it was written: entry by entry, in memory that does not grow with it."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from accounts.audit.audit_errors import BadAnchor, BadExport
from accounts.audit.chain import FIRST, hash_of
from accounts.audit.entry import Entry

MAX_BREAKS: Final = 20
_ANCHOR: Final = re.compile(r"(\d{1,18}):([0-9a-f]{64})", re.ASCII)


class Anchor(NamedTuple):
    """An entry's number and hash, as somebody noted them outside of the database."""

    number: int
    hash: str


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """Where the log is not as it was written, and how that shows."""

    number: int
    what: str


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, and what is wrong with it; of many breaks the first ones."""

    entries: int
    number: int
    hash: str
    """The last entry's: to be noted elsewhere and given to the next verification."""
    breaks: tuple[Break, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.breaks


class Verification:
    """Looks at one entry after the other. `part`: what is looked at may begin late and have gaps, as an organisation's own log has."""

    def __init__(self, anchors: Iterable[Anchor] = (), *, part: bool = False) -> None:
        self._anchors = {anchor.number: anchor.hash for anchor in anchors}
        self._part = part
        self._entries = 0
        self._number = 0
        self._hash = FIRST
        self._breaks: list[Break] = []

    def look(self, entry: Entry) -> None:
        """The next entry."""
        if entry.number != self._number + 1:
            self._jumped(entry)
        elif entry.previous_hash != self._hash:
            before = f"entry {self._number}" if self._number else "the beginning"
            self._broken(entry.number, f"it does not follow {before}: one of the two was changed or put in later")
        if hash_of(entry) != entry.hash:
            self._broken(entry.number, "it was changed: what it says does not give its hash")
        noted = self._anchors.pop(entry.number, None)
        if noted is not None and noted != entry.hash:
            self._broken(entry.number, f"it is not the one whose hash was noted, {noted}: the log was written anew")
        self._entries += 1
        self._number, self._hash = entry.number, entry.hash

    def ended(self, number: int | None = None, digest: str = "", *, newest: int | None = None) -> VerifyResult:
        """The verdict, once all were looked at; `number` and `digest` are what the head says, where there is one."""
        if number is not None and self._number < number:
            self._broken(self._number + 1, f"the end was cut off: the head says that entry {number} is the last")
        elif number is not None and (self._number, self._hash) != (number, digest):
            self._broken(self._number, "the head does not say its hash")
        if number is not None and newest is not None and newest > number:
            self._broken(number + 1, f"it stands after entry {number}, which the head says is the last")
        for missing in sorted(self._anchors):
            self._broken(missing, "its hash was noted, but it is not there")
        return VerifyResult(entries=self._entries, number=self._number, hash=self._hash, breaks=tuple(self._breaks))

    def _jumped(self, entry: Entry) -> None:
        if entry.number <= self._number:
            self._broken(entry.number, f"it is out of order: entry {self._number} stands before it")
        elif not self._part:
            gone = self._number + 1
            many = f"entries {gone} to {entry.number - 1} are" if entry.number - 1 > gone else f"entry {gone} is"
            self._broken(gone, f"{many} missing")

    def _broken(self, number: int, what: str) -> None:
        if len(self._breaks) < MAX_BREAKS:
            self._breaks.append(Break(number=number, what=what))


def parse_anchor(text: str) -> Anchor:
    """`123:9f86d0…`, as exports, verifications and the log's lines tell it."""
    found = _ANCHOR.fullmatch(text.strip())
    if found is None:
        raise BadAnchor(
            f"{text[:80]!r} is no number and hash: write them as 123:9f86d0… with all 64 digits of the hash"
        )
    return Anchor(int(found[1]), found[2])


def verify_lines(lines: Iterable[bytes], anchors: Sequence[Anchor] = (), *, part: bool = False) -> VerifyResult:
    """An export's lines, without a database. Raises BadExport."""
    verification = Verification(anchors, part=part)
    for count, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = _decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise BadExport(f"line {count} is no entry of an export: {error}") from error
        verification.look(entry)
    return verification.ended()


_decoder: Final = msgspec.json.Decoder(Entry)
