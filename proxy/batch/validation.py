"""Validation of an input file, line by line: its faults, their places, and OpenAI's codes for them. Pure.

A line is sound when it can be asked; a body that lacks a field of its endpoint fails when it is asked, and the error is
the answer of this line alone.
"""

from codecs import BOM_UTF8
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from providers.wire import Operation
from proxy.batch.batch import OPERATIONS, NewLine
from proxy.batch.tables import CUSTOM_ID_CHARS, MODEL_CHARS
from proxy.parse.chat_request import DEFAULT_OUTPUT_TOKENS
from settings.decoding import DECODE_ERRORS

MAX_PROBLEMS: Final = 100
_BYTES_PER_TOKEN: Final = 4
_BEGINNING: Final = 4_096
"""The bytes of a first message by which lines with the same beginning are grouped."""
_MOST_TOKENS: Final = 10**9


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a file. `line` is None for the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class LineSize(msgspec.Struct, frozen=True, kw_only=True):
    """The quantities that bound a line's cost."""

    operation: Operation
    model: str
    body_bytes: int
    input_tokens: int
    """The estimated tokens of the prompt."""
    max_output_tokens: int | None
    choices: int


Bound = Callable[[LineSize], int | None]
"""The most, in nano-dollars, that a line may cost; None where no price is known."""


class Validated(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file. Without problems its lines may be begun."""

    problems: list[Problem]
    lines: list[NewLine]
    model: str | None
    """The model of all lines; None where they differ."""

    @property
    def tokens(self) -> int:
        return sum(line.tokens for line in self.lines)

    @property
    def bound_nanousd(self) -> int | None:
        """The most that all lines may cost together, in nano-dollars; None where a line has no price."""
        bounds = [line.bound_nanousd for line in self.lines]
        return None if None in bounds else sum(bound or 0 for bound in bounds)

    @property
    def reserved_nanousd(self) -> int:
        """The most that the lines with a price may cost, in nano-dollars."""
        return sum(line.bound_nanousd or 0 for line in self.lines)


class _Line(msgspec.Struct):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    instructions: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    n: Any = None


class _Found(msgspec.Struct):
    """A sound line, before the order in which lines are begun is known."""

    line: NewLine
    model: str
    beginning: bytes


_decode_line: Final = msgspec.json.Decoder(_Line).decode
_decode_body: Final = msgspec.json.Decoder(_Body).decode
_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Validation:
    """A reader of a file in pieces. `end` returns its findings."""

    def __init__(self, endpoint: str, *, max_lines: int, max_line_bytes: int, bound: Bound) -> None:
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes
        self._bound = bound
        self._held = b""
        self._start = 0
        """The place in the file at which the held bytes begin."""
        self._number = 0
        self._embedded = 0
        self._ids: dict[str, int] = {}
        self._problems: list[Problem] = []
        self._found: list[_Found] = []

    @property
    def is_hopeless(self) -> bool:
        """True when enough problems are known, so that the rest need not be read."""
        return len(self._problems) >= MAX_PROBLEMS

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the file."""
        piece = self._held + piece
        if not self._start and piece.startswith(BOM_UTF8):
            # Some editors begin a file with it.
            piece, self._start = piece[len(BOM_UTF8) :], len(BOM_UTF8)
        lines = piece.split(b"\n")
        self._held = lines.pop()
        for line in lines:
            self._take(line)
            self._start += len(line) + 1
        if len(self._held) > self._max_line_bytes and not self.is_hopeless:
            self._number += 1
            self._too_long()
            # Where it ends is of no interest any more.
            self._problems.extend([self._problems[-1]] * MAX_PROBLEMS)

    def end(self) -> Validated:
        """Return the findings on the whole file."""
        if self._held and not self.is_hopeless:
            self._take(self._held)
        if not self._found and not self._problems:
            self._problems.append(Problem(code="empty_file", message="The input file has no requests in it."))
        distinct = list(dict.fromkeys(self._problems))[:MAX_PROBLEMS]
        models = {each.model for each in self._found}
        # By model and beginning, so that what engines have cached of one line serves the next.
        ordered = sorted(self._found, key=lambda each: (each.model, each.beginning, each.line.number))
        lines = [msgspec.structs.replace(each.line, place=place) for place, each in enumerate(ordered)]
        lines.sort(key=lambda line: line.number)
        return Validated(problems=distinct, lines=lines, model=models.pop() if len(models) == 1 else None)

    def _take(self, raw: bytes) -> None:
        self._number += 1
        if not raw.strip() or self.is_hopeless:
            return
        if len(raw) > self._max_line_bytes:
            self._too_long()
        elif len(self._found) >= self._max_lines:
            self._problem("too_many_requests", f"A batch has at most {self._max_lines} requests; split the file.", None)
            self._problems.extend([self._problems[-1]] * MAX_PROBLEMS)
        else:
            self._read(raw)

    def _too_long(self) -> None:
        self._problem("line_too_large", f"A line has at most {self._max_line_bytes} bytes.", None)

    def _read(self, raw: bytes) -> None:
        try:
            raw.decode()
            line = _decode_line(raw)
        except DECODE_ERRORS:
            self._problem("invalid_json_line", "This line is not a JSON object.", None)
            return
        custom_id = self._checked_id(line.custom_id)
        if custom_id is None or not self._is_addressed(line):
            return
        body = self._checked_body(line.body)
        if body is None:
            return
        self._ids[custom_id] = self._number
        size = self._size_of(body, bytes(line.body))
        self._found.append(
            _Found(
                line=NewLine(
                    number=self._number,
                    place=0,
                    custom_id=custom_id,
                    start=self._start,
                    size=len(raw),
                    tokens=size.input_tokens + _output_tokens(size),
                    bound_nanousd=self._bound(size),
                ),
                model=size.model,
                beginning=_beginning(body),
            )
        )

    def _checked_id(self, custom_id: Any) -> str | None:
        if custom_id is None:
            self._problem("missing_required_parameter", "`custom_id` is missing.", "custom_id")
        elif not isinstance(custom_id, str) or not 1 <= len(custom_id) <= CUSTOM_ID_CHARS or "\x00" in custom_id:
            told = f"`custom_id` is a text of 1 to {CUSTOM_ID_CHARS} characters."
            self._problem("invalid_custom_id", told, "custom_id")
        elif custom_id in self._ids:
            told = f"`custom_id` stands already on line {self._ids[custom_id]}; each line has its own."
            self._problem("duplicate_custom_id", told, "custom_id")
        else:
            return custom_id
        return None

    def _is_addressed(self, line: _Line) -> bool:
        if line.method is None or line.url is None:
            missing = "method" if line.method is None else "url"
            self._problem("missing_required_parameter", f"`{missing}` is missing.", missing)
        elif line.method != "POST":
            self._problem("invalid_method", "`method` must be POST.", "method")
        elif line.url != self._endpoint:
            self._problem("invalid_url", f"`url` must be {self._endpoint}, the endpoint of the batch.", "url")
        else:
            return True
        return False

    def _checked_body(self, raw: msgspec.Raw) -> _Body | None:
        if not bytes(raw):
            self._problem("missing_required_parameter", "`body` is missing.", "body")
            return None
        try:
            body = _decode_body(raw)
        except DECODE_ERRORS:
            self._problem("invalid_request", "`body` must be a JSON object.", "body")
            return None
        if not body.model:
            self._problem("missing_required_parameter", "`body.model` is missing.", "body.model")
        elif not isinstance(body.model, str) or len(body.model) > MODEL_CHARS or "\x00" in body.model:
            self._problem(
                "invalid_request", f"`body.model` is a text of at most {MODEL_CHARS} characters.", "body.model"
            )
        elif body.stream not in (None, False):
            self._problem("invalid_request", "Lines of a batch are not streamed; leave `stream` out.", "body.stream")
        elif self._embeds_too_much(body):
            told = f"A batch embeds at most {self._max_lines} texts in all; split the file."
            self._problem("too_many_inputs", told, "body.input")
        else:
            return body
        return None

    def _embeds_too_much(self, body: _Body) -> bool:
        if OPERATIONS[self._endpoint] != "embeddings":
            return False
        self._embedded += _texts_in(bytes(body.input))
        return self._embedded > self._max_lines

    def _size_of(self, body: _Body, raw: bytes) -> LineSize:
        operation = OPERATIONS[self._endpoint]
        limits = [
            each for each in (body.max_tokens, body.max_completion_tokens, body.max_output_tokens) if _is_count(each)
        ]
        asked = len(bytes(body.messages)) or len(bytes(body.input)) or len(bytes(body.prompt)) or len(raw)
        return LineSize(
            operation=operation,
            model=body.model,
            body_bytes=len(raw),
            input_tokens=max(1, asked // _BYTES_PER_TOKEN),
            max_output_tokens=max(limits, default=None) if operation == "chat" else 0,
            choices=body.n if _is_count(body.n) else 1,
        )

    def _problem(self, code: str, message: str, param: str | None) -> None:
        self._problems.append(Problem(code=code, message=message, line=self._number, param=param))


def _output_tokens(size: LineSize) -> int:
    return (DEFAULT_OUTPUT_TOKENS if size.max_output_tokens is None else size.max_output_tokens) * size.choices


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_TOKENS


def _texts_in(raw: bytes) -> int:
    """Return the number of texts of an embeddings request; a list of numbers is one."""
    try:
        each = _decode_list(raw)
    except DECODE_ERRORS:
        return 1
    return len(each) if each and bytes(each[0])[:1] in {b'"', b"["} else 1


def _beginning(body: _Body) -> bytes:
    """Return a hash of the instructions or the first message, which lines mostly share."""
    try:
        messages = _decode_list(bytes(body.messages) or b"[]")
    except DECODE_ERRORS:
        messages = []
    first = bytes(body.system) or (bytes(messages[0]) if messages else bytes(body.instructions))
    return blake2b(first[:_BEGINNING], digest_size=8).digest()
