"""Runs of words: the events of one read that differ in nothing but the piece of text that each says.

Most of a stream is these. Under load many of them come in one read, and are then taken apart together, in a few passes over the
bytes, rather than decoded one by one. Where each tells the usage so far, as vLLM's do, that may differ, too; the last one counts.
"""

import re
from typing import Final

import msgspec

from providers.errors import UpstreamError
from providers.wire import Event, Run, WireUsage, decode_event
from settings.decoding import DECODE_ERRORS

_DATA: Final = b"data: "
_END: Final = b"\n\n"
_CONTENT: Final = re.compile(rb'(.*"content": ?")(?:[^"\\]|\\.)+(".*)')
_COUNTED: Final = re.compile(rb',"usage": ?(\{[^{}\n]*\})\}\n\n')
_LOOKED_AT: Final = 3
"""The first events of a read, among which the form of words is looked for: a role may come before them."""
_TRIES: Final = 8
"""Reads in a row without a run after which no further run is looked for."""
_PROBE: Final = "words"

_texts: Final = msgspec.json.Decoder(list[str]).decode
_usage: Final = msgspec.json.Decoder(WireUsage).decode


class FoundRun(msgspec.Struct, frozen=True):
    """A run as one event, and which part of the read it was."""

    event: Event
    start: int
    end: int


class DeltaCoalescer:
    """A finder of runs of words in the reads of one chat's stream."""

    __slots__ = ("_form", "_tries")

    def __init__(self) -> None:
        self._form: _Form | None = None
        self._tries = _TRIES

    def find(self, read: bytes) -> FoundRun | None:
        """Return the run in a read of several events; None for any other, and where something else is between its words.

        It is one only where an event may begin, which the bytes before it tell.
        """
        if not self._tries or read.find(_END, 0, -len(_END)) < 0:
            return None
        form = self._form or _form_in(read)
        found = None if form is None else form.run_in(read)
        if found is None:
            self._form = None
            self._tries -= 1
        else:
            self._form = form
            self._tries = _TRIES
        return found


class _Form:
    """The fields that a stream's events with words have in common."""

    __slots__ = ("_after", "_before", "_between", "_counted", "_lead", "_mark", "_service_tier", "_trail")

    def __init__(self, before: bytes, after: bytes, counted: bytes, service_tier: str | None) -> None:
        """`before` and `after` are an event's payload around its piece of text, without its usage. `counted` is how it comes
        to that, such as `,"usage":`; empty where it has none.
        """
        self._before = before
        self._after = after
        self._counted = counted
        self._service_tier = service_tier
        self._mark = after[:-1] + counted if counted else after
        self._lead = _DATA + before
        self._trail = after + _END
        self._between = self._trail + self._lead

    def run_in(self, read: bytes) -> FoundRun | None:
        """Return all from the first to the last event of this form, if those between are of this form, too."""
        lead, trail = self._lead, self._trail
        start, last = read.find(lead), read.rfind(self._mark, 0, read.rfind(_END))
        if start < 0 or last < start:
            return None
        end = read.find(_END, last) + len(_END)
        run = read[start:end]
        usages: list[bytes] = []
        if self._counted:
            parts = _COUNTED.split(run)
            run, usages = (b"}" + _END).join(parts[::2]), parts[1::2]
        before, after = len(lead), -len(self._after)
        # Every second line is the empty one that ends an event.
        pieces = [line[before:after] for line in run.split(b"\n")[:-1:2]]
        if lead + self._between.join(pieces) + trail != run:
            return None
        event = self._event(pieces, usages)
        return None if event is None else FoundRun(event, start, end)

    def _event(self, pieces: list[bytes], usages: list[bytes]) -> Event | None:
        """Return the run of these pieces of text, and of the usages behind them; None where some are no such thing."""
        texts = _texts_of(pieces)
        words = "".join(texts)
        if not words or (self._counted and len(usages) != len(pieces)):
            return None
        payload, usage = self._before + b"".join(pieces) + self._after, None
        if usages:
            try:
                usage = _usage(usages[-1])
            except DECODE_ERRORS:
                return None
            payload = b"%b%b%b}" % (payload[:-1], self._counted, usages[-1])
        tokens = len(texts) - texts.count("")
        return Event(
            payload, True, 1, len(words), usage, False, self._service_tier, words,
            run=Run(self._before, b"\n".join(pieces), self._after, tokens),
        )  # fmt: skip


def _texts_of(pieces: list[bytes]) -> list[str]:
    """Return the texts that JSON writes as these, between quotation marks; empty where one of them is no text."""
    joined = b'","'.join(pieces)
    if b'\\","' in joined:
        # A backslash before the mark that ends a text may belong to either.
        return []
    try:
        texts = _texts(b'["%b"]' % joined)
    except DECODE_ERRORS:
        return []
    # All those marks are real ones now, so each further one in a piece has made a text of its own.
    return texts if len(texts) == len(pieces) else []


def _form_in(read: bytes) -> _Form | None:
    """Return the form of the words among the first events of a read."""
    end = -len(_END)
    for _ in range(_LOOKED_AT):
        start = read.find(_DATA, end + len(_END)) + len(_DATA)
        end = read.find(_END, start)
        if start < len(_DATA) or end < 0:
            return None
        form = _form_of(read[start:end])
        if form is not None:
            return form
    return None


def _form_of(payload: bytes) -> _Form | None:
    """Return the form of an event that says nothing but a piece of text."""
    counted = _COUNTED.search(payload + _END)
    plain = payload if counted is None else payload[: counted.start()] + b"}"
    found = _CONTENT.fullmatch(plain)
    if found is None:
        return None
    before, after = found.groups()
    # Tried with another text, so that what is told apart is what decoding tells apart.
    probe = before + _PROBE.encode() + after
    try:
        probed = decode_event(probe, "")
    except UpstreamError:
        return None
    tier = probed.service_tier
    if probed != Event(probe, True, 1, len(_PROBE), None, False, tier, _PROBE):
        return None
    return _Form(before, after, b"" if counted is None else payload[counted.start() : counted.start(1)], tier)
