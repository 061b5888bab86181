"""Server-sent events, read incrementally: bytes in as the network gives them, data payloads out."""

MAX_EVENT_BYTES = 8 * 1024 * 1024

DONE = b"[DONE]"
"""OpenAI's end marker: the data of a stream's last event."""

_BOM = b"\xef\xbb\xbf"
_PREFIX = b"data: "
_BETWEEN = b"\n\n" + _PREFIX


class EventTooLarge(Exception):
    """An event, or a line of one, is longer than the bound."""


class SseParser:
    """An incremental parser of server-sent events: reads, split or joined at any byte, become the data of whole events.

    Follows the WHATWG rules for event streams: lines end in LF, CR or CRLF, several `data` lines are joined by LF, an
    empty line ends an event, other fields and comments are skipped.
    """

    __slots__ = ("_after_cr", "_at_start", "_data", "_event_bytes", "_max", "_rest", "_rest_bytes")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._data: list[bytes] = []
        self._event_bytes = 0
        self._at_start = True
        self._after_cr = False

    def feed(self, read: bytes) -> list[bytes]:
        """Return the data of every event that `read` completes. Raises EventTooLarge."""
        if (
            not self._rest
            and not self._data
            and not self._after_cr
            and read.startswith(_PREFIX)
            and read.endswith(b"\n\n")
            and b"\r" not in read
        ):
            payloads = self._whole_events(read)
            if payloads is not None:
                return payloads
        return self._lines(read)

    @property
    def is_between_events(self) -> bool:
        """True when an event may begin with the next byte: nothing of one is held, not even a line without data."""
        return not (self._rest or self._event_bytes or self._after_cr)

    @property
    def held_bytes(self) -> int:
        """The number of bytes held of an event that has not ended."""
        return self._event_bytes + self._rest_bytes

    def clear(self) -> None:
        """Drop the held part of an event that will not end."""
        self._rest.clear()
        self._data.clear()
        self._rest_bytes = self._event_bytes = 0

    def finish(self) -> list[bytes]:
        """Return the data of a last event without its final empty line, for servers that omit it. Raises EventTooLarge."""
        return self._lines(b"\n\n") if self._rest or self._data else []

    def _whole_events(self, read: bytes) -> list[bytes] | None:
        """Return the fast path for a read of whole events with one data line each; None when the read is not that."""
        payloads = read[len(_PREFIX) : -2].split(_BETWEEN)
        # Each event ends in two line ends, and has none within.
        if read.count(b"\n") != 2 * len(payloads):
            return None
        if len(read) > self._max:
            longest = max(map(len, payloads))
            if longest > self._max:
                raise EventTooLarge(f"an event of {longest} bytes")
        self._at_start = False
        return payloads

    def _lines(self, read: bytes) -> list[bytes]:
        if self._after_cr and read:
            # The line end was a CR; an LF right after it belongs to the same end.
            self._after_cr = False
            if read.startswith(b"\n"):
                read = read[1:]
        if not read:
            return []
        if b"\n" not in read and b"\r" not in read:
            self._keep(read)
            return []
        text = self._take_rest(read)
        if self._at_start:
            self._at_start = False
            text = text.removeprefix(_BOM)
        if b"\r" in text:
            self._after_cr = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        if rest:
            self._keep(rest)
        payloads: list[bytes] = []
        for line in lines:
            self._line(line, payloads)
        return payloads

    def _keep(self, rest: bytes) -> None:
        """Hold an unfinished line back. Its pieces are joined once, so a byte at a time stays linear."""
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        if self._event_bytes + self._rest_bytes > self._max:
            raise EventTooLarge(f"an event of more than {self._max} bytes")

    def _take_rest(self, read: bytes) -> bytes:
        if not self._rest:
            return read
        text = b"".join((*self._rest, read))
        self._rest.clear()
        self._rest_bytes = 0
        return text

    def _line(self, line: bytes, payloads: list[bytes]) -> None:
        if not line:
            if self._data:
                payloads.append(b"\n".join(self._data))
                self._data.clear()
            self._event_bytes = 0
            return
        self._event_bytes += len(line)
        if self._event_bytes > self._max:
            raise EventTooLarge(f"an event of more than {self._max} bytes")
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(_PREFIX) else line[5:])
        elif line == b"data":
            self._data.append(b"")
