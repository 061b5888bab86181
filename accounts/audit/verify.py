"""Verification of the audit log's hash chain, entry by entry in constant memory."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from accounts.audit.audit_errors import BadAnchor, BadExport
from accounts.audit.chain import FIRST, digest_of_redacted, hash_of
from accounts.audit.entry import Entry
from settings.decoding import DECODE_ERRORS

MAX_BREAKS: Final = 20
REDACTED: Final = "audit.redacted"
"""The action of the entry that vouches for those that personal data was taken out of."""
_ANCHOR: Final = re.compile(r"(\d{1,18}):([0-9a-f]{64})", re.ASCII)


class Anchor(NamedTuple):
    """An entry's number and hash as noted outside of the database, to detect a log that was rewritten."""

    number: int
    hash: str


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the log is not as it was written: an entry's number and a sentence for people."""

    number: int
    what: str


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification; of many breaks only the first MAX_BREAKS are kept."""

    entries: int
    """Entries that were checked."""
    number: int
    """The last entry's number; 0 when there was none."""
    hash: str
    """The last entry's hash, to be noted elsewhere and given to the next verification as an anchor."""
    breaks: tuple[Break, ...]

    @property
    def sound(self) -> bool:
        """True when no break was found."""
        return not self.breaks


class Verification:
    """A check of entries one after the other, in the order of their numbers.

    `part` allows a late start and gaps, as in one organisation's own part of the log.
    """

    def __init__(self, anchors: Iterable[Anchor] = (), *, part: bool = False) -> None:
        self._anchors = {anchor.number: anchor.hash for anchor in anchors}
        self._part = part
        self._entries = 0
        self._number = 0
        self._hash = FIRST
        self._breaks: list[Break] = []
        self._unvouched: dict[int, tuple[int, str]] = {}
        """Entries that something was taken out of: the later one that has to say so, and their digest."""

    def check(self, entry: Entry) -> None:
        """Check the next entry: its place in the chain, its own hash, and an anchor noted for it."""
        if entry.number != self._number + 1:
            self._report_jump(entry)
        elif entry.previous_hash != self._hash:
            before = f"entry {self._number}" if self._number else "the beginning"
            self._report(entry.number, f"it does not follow {before}: one of the two was changed or put in later")
        if entry.redacted > entry.number:
            self._unvouched[entry.number] = (entry.redacted, digest_of_redacted(entry))
        elif hash_of(entry) != entry.hash:
            self._report(entry.number, "it was changed: what it says does not give its hash")
        if entry.action == REDACTED:
            self._check_vouched(entry)
        noted = self._anchors.pop(entry.number, None)
        if noted is not None and noted != entry.hash:
            self._report(entry.number, f"it is not the one whose hash was noted, {noted}: the log was written anew")
        self._entries += 1
        self._number, self._hash = entry.number, entry.hash

    def result(self, number: int | None = None, digest: str = "", *, newest: int | None = None) -> VerifyResult:
        """Return the result, once all entries were checked.

        `number` and `digest` are those of the head row, `newest` is the highest number in the table; None where there
        is no database.
        """
        if number is not None and self._number < number:
            self._report(self._number + 1, f"the end was cut off: the head says that entry {number} is the last")
        elif number is not None and (self._number, self._hash) != (number, digest):
            self._report(self._number, "the head does not say its hash")
        if number is not None and newest is not None and newest > number:
            self._report(number + 1, f"it stands after entry {number}, which the head says is the last")
        for unvouched, (by, _) in sorted(self._unvouched.items()):
            if not self._part or by <= self._number:
                self._report(unvouched, f"it was changed: entry {by} should say that something was taken out of it")
        for missing in sorted(self._anchors):
            self._report(missing, "its hash was noted, but it is not there")
        return VerifyResult(entries=self._entries, number=self._number, hash=self._hash, breaks=tuple(self._breaks))

    def _check_vouched(self, entry: Entry) -> None:
        """Compare the entries that something was taken out of with what this one says of them."""
        for number, digest in vouched_by(entry).items():
            expected = self._unvouched.get(number)
            if expected == (entry.number, digest):
                del self._unvouched[number]
            # Another erasure since then may have taken out more, and a later entry vouches.

    def _report_jump(self, entry: Entry) -> None:
        if entry.number <= self._number:
            self._report(entry.number, f"it is out of order: entry {self._number} stands before it")
        elif not self._part:
            gone = self._number + 1
            many = f"entries {gone} to {entry.number - 1} are" if entry.number - 1 > gone else f"entry {gone} is"
            self._report(gone, f"{many} missing")

    def _report(self, number: int, what: str) -> None:
        if len(self._breaks) < MAX_BREAKS:
            self._breaks.append(Break(number=number, what=what))


def vouched_by(entry: Entry) -> Mapping[int, str]:
    """Return the digests that an entry of REDACTED has of what was left of others, by their numbers."""
    try:
        told = msgspec.json.decode(entry.after or "{}", type=_Vouched)
    except msgspec.MsgspecError:
        return {}
    return {int(number): digest for number, digest in told.redacted.items() if number.isdecimal()}


class _Vouched(msgspec.Struct):
    redacted: dict[str, str] = {}


def parse_anchor(text: str) -> Anchor:
    """Parse `123:9f86d0…`, the form that exports, verifications and log lines use. Raises BadAnchor."""
    found = _ANCHOR.fullmatch(text.strip())
    if found is None:
        raise BadAnchor(
            f"{text[:80]!r} is no number and hash: write them as 123:9f86d0… with all 64 digits of the hash"
        )
    return Anchor(int(found[1]), found[2])


def verify_lines(lines: Iterable[bytes], anchors: Sequence[Anchor] = (), *, part: bool = False) -> VerifyResult:
    """Verify an export's lines without a database. Raises BadExport for a line that is no entry."""
    verification = Verification(anchors, part=part)
    for count, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = _decoder.decode(line)
        except DECODE_ERRORS as error:
            raise BadExport(f"line {count} is no entry of an export: {error}") from error
        verification.check(entry)
    return verification.result()


_decoder: Final = msgspec.json.Decoder(Entry)
