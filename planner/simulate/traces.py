"""Traces of real traffic: arrival times, lengths, and shared prefixes of requests. They hold no text.

Two formats are read, told apart by the first line: Mooncake's (a JSON object a line, with the ids of the prompt's
512-token blocks) and Azure's (CSV, without prefixes).
"""

import csv
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec

from planner.simulate.simulation_errors import TraceUnreadable
from settings.decoding import DECODE_ERRORS

TraceFormat = Literal["mooncake", "azure"]

BLOCK_TOKENS: Final = 512
"""Tokens in a block of Mooncake's ids."""

MAX_ROWS: Final = 5_000_000
MAX_LINE_BYTES: Final = 1_000_000
MAX_TOKENS: Final = 10_000_000
_MAX_SECONDS: Final = 366 * 86_400
_APART_S: Final = 10.0
_LAST_S: Final = 1e11
_LOOKED_AT: Final = 20_000
_DEEPEST: Final = 128
_MANY_WAYS: Final = 8
"""Ways to go on. A conversation has few: its next turn, and what was asked again."""
_AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

DAY_PROFILE: Final = (
    *(0.30, 0.24, 0.20, 0.18, 0.18, 0.22, 0.32, 0.48, 0.68, 0.86, 0.95, 0.98),
    *(0.94, 0.97, 1.00, 0.99, 0.95, 0.88, 0.78, 0.68, 0.60, 0.52, 0.44, 0.36),
)
"""Fraction of a trace's rate in each hour of a day, from midnight on: the shape of office hours."""


class TraceRequest(msgspec.Struct, frozen=True):
    """One request. `blocks` are ids of its prompt's blocks in order: equal id, equal prefix up to there."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    priority: int = 0
    """Priority as in vLLM: the lower goes first."""
    number: int = 0
    """Its place in a longer trace that this one is a part of."""
    bound: bool = False
    """True when nobody else can serve it, so that it waits for room."""


class Trace(msgspec.Struct, frozen=True):
    """Requests in the order of their arrival, from second 0 on."""

    name: str
    format: TraceFormat
    requests: tuple[TraceRequest, ...]
    block_tokens: int = BLOCK_TOKENS

    @property
    def duration_s(self) -> float:
        return self.requests[-1].at_s

    @property
    def highest_block(self) -> int:
        """The highest id of a block; 0 where no request has any."""
        return max(max(each.blocks, default=0) for each in self.requests)

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output_tokens for request in self.requests)

    def as_json(self) -> dict[str, Any]:
        """Return plain values, without the requests."""
        return {
            "name": self.name,
            "format": self.format,
            "requests": len(self.requests),
            "duration_s": self.duration_s,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_trace(path: Path, *, limit: int = MAX_ROWS) -> Trace:
    """Read at most `limit` requests. Raises TraceUnreadable, which names the line that is wrong."""
    try:
        with path.open("rb") as file:
            first = file.readline(MAX_LINE_BYTES + 1)
            kind = _format(path, first)
            file.seek(0)
            rows = _azure(path, file) if kind == "azure" else _mooncake(path, file)
            requests = _bounded(path, rows, limit)
    except OSError as error:
        raise TraceUnreadable(f"{path}: cannot be read: {error.strerror or error}") from None
    if not requests:
        raise TraceUnreadable(f"{path}: holds no request")
    requests.sort(key=lambda request: request.at_s)
    start = requests[0].at_s
    shifted = tuple(msgspec.structs.replace(each, at_s=each.at_s - start) for each in requests)
    if shifted[-1].at_s > _MAX_SECONDS:
        raise TraceUnreadable(f"{path}: its first and last request are more than a year apart")
    return Trace(path.name, kind, shifted)


def _format(path: Path, first: bytes) -> TraceFormat:
    text = first.lstrip(b"\xef\xbb\xbf").strip()
    if text.startswith(b"{"):
        return "mooncake"
    if tuple(part.strip() for part in text.decode("utf-8", "replace").split(",")) == _AZURE_COLUMNS:
        return "azure"
    raise TraceUnreadable(
        f"{path}:1: neither a JSON object with timestamp, input_length, output_length and hash_ids (Mooncake), "
        f"nor the heading {','.join(_AZURE_COLUMNS)} (Azure)"
    )


def _bounded(path: Path, rows: Iterator[TraceRequest], limit: int) -> list[TraceRequest]:
    found: list[TraceRequest] = []
    for row in rows:
        if len(found) == limit:
            break
        if len(found) == MAX_ROWS:
            raise TraceUnreadable(f"{path}: more than {MAX_ROWS:,} requests; cut it, or simulate a part with --limit")
        found.append(row)
    return found


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number in range(1, MAX_ROWS * 2):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise TraceUnreadable(f"{path}:{number}: longer than {MAX_LINE_BYTES:,} bytes")
        if line.strip():
            yield number, line


def _mooncake(path: Path, file: BinaryIO) -> Iterator[TraceRequest]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, line in _lines(path, file):
        where = f"{path}:{number}"
        try:
            row = decoder.decode(line)
        except DECODE_ERRORS as error:
            raise TraceUnreadable(f"{where}: {error}") from None
        prompt = _tokens(where, "input_length", row.input_length)
        blocks = -(-prompt // BLOCK_TOKENS)
        if len(row.hash_ids) > blocks:
            raise TraceUnreadable(
                f"{where}: {len(row.hash_ids)} hash_ids for {prompt} tokens, which are {blocks} blocks"
            )
        if any(not 0 <= each < 1 << 60 for each in row.hash_ids):
            raise TraceUnreadable(f"{where}: hash_ids must be whole numbers from 0 to 2^60")
        yield TraceRequest(
            _second(where, row.timestamp / 1_000),
            prompt,
            _tokens(where, "output_length", row.output_length),
            tuple(row.hash_ids),
        )


def _azure(path: Path, file: BinaryIO) -> Iterator[TraceRequest]:
    lines = _lines(path, file)
    next(lines)
    start: datetime | None = None
    for index, (number, line) in enumerate(lines):
        where = f"{path}:{number}"
        try:
            cells = next(csv.reader([line.decode()]))
            moment, prompt, output = datetime.fromisoformat(cells[0].strip()), int(cells[1]), int(cells[2])
        except (ValueError, IndexError, UnicodeDecodeError, csv.Error):
            raise TraceUnreadable(f"{where}: not a time and two whole numbers") from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        start = start or moment
        prompt = _tokens(where, "ContextTokens", prompt)
        yield TraceRequest(
            (moment - start).total_seconds(),
            prompt,
            _tokens(where, "GeneratedTokens", output),
            _unshared(index, prompt),
        )


def _unshared(index: int, prompt_tokens: int) -> tuple[int, ...]:
    """Return blocks of a request that no other shares, for traces without prefixes: none are assumed."""
    first = index << 20
    return tuple(range(first, first + -(-prompt_tokens // BLOCK_TOKENS)))


def _tokens(where: str, name: str, value: int) -> int:
    """Return the number of tokens, at least 1: an engine reads and writes no fewer. Raises TraceUnreadable out of range."""
    if not 0 <= value <= MAX_TOKENS:
        raise TraceUnreadable(f"{where}: {name} must be between 0 and {MAX_TOKENS:,}, not {value}")
    return max(1, value)


def _second(where: str, value: float) -> float:
    if not (math.isfinite(value) and 0 <= value <= _LAST_S):
        raise TraceUnreadable(f"{where}: timestamp must be a number of milliseconds, not negative")
    return value


def prepared(path: Path, *, limit: int | None, speed: float, users: int, days: int, seed: int, spaced: bool) -> Trace:
    """Read a trace and make of it what is replayed: `spread` where `spaced`, `multiplied`, `tiled` and `sped_up`."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, and nothing is kept secret by it
    found = read_trace(path, limit=MAX_ROWS if limit is None else limit)
    found = multiplied(spread(found) if spaced else found, users, rng)
    return sped_up(tiled(found, days, rng) if days else found, speed)


def sped_up(trace: Trace, speed: float) -> Trace:
    """Return the same requests, arriving `speed` times as fast."""
    if speed == 1:
        return trace
    return _mapped(trace, lambda each: msgspec.structs.replace(each, at_s=each.at_s / speed))


def multiplied(trace: Trace, times: int, rng: random.Random) -> Trace:
    """Return the same traffic from `times` as many users: `times` copies of each request, some seconds apart, without shared
    prefixes.
    """
    if times == 1:
        return trace
    _refuse_many(trace, len(trace.requests) * times)
    widest = 1 + trace.highest_block
    grown = [
        msgspec.structs.replace(
            each,
            at_s=each.at_s if copy == 0 else each.at_s + rng.uniform(0, _APART_S),
            blocks=tuple(block + copy * widest for block in each.blocks),
        )
        for copy in range(times)
        for each in trace.requests
    ]
    grown.sort(key=lambda each: each.at_s)
    return msgspec.structs.replace(trace, requests=tuple(grown))


def spread(trace: Trace) -> Trace:
    """Spread requests of one timestamp evenly until the next one: Mooncake's clock ticks every three seconds."""
    times = sorted({each.at_s for each in trace.requests})
    gaps = {at: after - at for at, after in pairwise(times)}
    many = Counter(each.at_s for each in trace.requests)
    place: Counter[float] = Counter()
    moved: list[TraceRequest] = []
    for each in trace.requests:
        part = place[each.at_s] / many[each.at_s]
        place[each.at_s] += 1
        moved.append(msgspec.structs.replace(each, at_s=each.at_s + gaps.get(each.at_s, 0.0) * part))
    return msgspec.structs.replace(trace, requests=tuple(moved))


def family(request: TraceRequest) -> int:
    """Return the id of a conversation: its second block, as the first is often a system prompt that all share."""
    blocks = request.blocks
    return blocks[1] if len(blocks) > 1 else blocks[0] if blocks else 0


def shared_beginnings(trace: Trace) -> frozenset[int]:
    """Return blocks after which prompts go on in many ways: those of system prompts and tools, which are no
    conversation's own. Looked for in the first requests, which is enough for what many share.
    """
    follow: dict[int, set[int]] = {}
    for request in trace.requests[:_LOOKED_AT]:
        for block, after in pairwise(request.blocks[:_DEEPEST]):
            follow.setdefault(block, set()).add(after)
    return frozenset(block for block, after in follow.items() if len(after) >= _MANY_WAYS)


def root(request: TraceRequest, shared: frozenset[int]) -> int:
    """Return the id of a conversation as gateways have it, who know its instructions and first message: the first block
    behind the last of `shared_beginnings`, its second one at least.
    """
    blocks = request.blocks
    own = max((at + 1 for at, block in enumerate(blocks[:_DEEPEST]) if block in shared), default=1)
    return blocks[min(own, len(blocks) - 1)] if blocks else 0


def tiled(trace: Trace, days: int, rng: random.Random) -> Trace:
    """Return whole days, each hour of which is the trace thinned out to that hour's part of the day's profile.

    No two hours share a prefix. Conversations are kept or left out as a whole, so that hit rates survive.
    """
    hour_s = 3_600.0
    widest = 1 + trace.highest_block
    kept: list[TraceRequest] = []
    for hour in range(24 * days):
        part, salt = DAY_PROFILE[hour % 24], rng.getrandbits(64)
        for each in trace.requests:
            if each.at_s >= hour_s:
                break
            if hash((salt, family(each))) % 10_000 < part * 10_000:
                shift = hour * widest
                kept.append(
                    msgspec.structs.replace(
                        each, at_s=each.at_s + hour * hour_s, blocks=tuple(block + shift for block in each.blocks)
                    )
                )
        _refuse_many(trace, len(kept))
    return msgspec.structs.replace(trace, requests=tuple(kept))


def _refuse_many(trace: Trace, count: int) -> None:
    if count > MAX_ROWS:
        raise TraceUnreadable(f"{trace.name}: that would be more than {MAX_ROWS:,} requests; ask for less")


def _mapped(trace: Trace, change: Callable[[TraceRequest], TraceRequest]) -> Trace:
    return msgspec.structs.replace(trace, requests=tuple(map(change, trace.requests)))
