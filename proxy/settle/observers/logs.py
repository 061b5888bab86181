"""Logs on stderr: one bounded line per event, with allow-listed fields only; JSON, or plain text on a terminal.

A prompt, a completion or a key has no way in: requests are logged from an allow-list of fields, of an upstream's
refusal its cleaned message without the parts that it repeats of the request, other libraries' messages lose their
arguments, and a traceback holds types and places but no messages. Reference: docs/observability.md.
"""

import contextlib
import logging
import queue
import re
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, BinaryIO, Final, Literal

import msgspec

from proxy.dispatch.outcome import AttemptOutcome, RequestOutcome

MAX_TEXT_CHARS: Final = 2_048
MAX_FRAMES: Final = 30
MAX_CAUSES: Final = 5
MAX_FIELDS: Final = 50
MAX_LOGGED_ATTEMPTS: Final = 20
MAX_QUEUED_LINES: Final = 10_000
MOST_ALIKE_A_SECOND: Final = 20
"""The most lines a second of requests that failed with the same status and code."""

LogForm = Literal["json", "text"]

_REQUESTS: Final = "weighbridge.request"
# Loggers whose messages are written by us or by uvicorn; every other message is a template at most.
_OWN: Final = (
    "weighbridge",
    "proxy",
    "accounts",
    "cost",
    "providers",
    "classifier",
    "selfhosted",
    "dashboards",
    "uvicorn",
)
# LiteLLM logs requests and replies in full, so it gets a null handler only.
_SILENT: Final = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "uvicorn.access")
_UVICORN: Final = ("uvicorn", "uvicorn.error", "uvicorn.asgi")

_SECRET: Final = re.compile(
    r"\b(?:wb|sk|xai)-[A-Za-z0-9_\-]{12,}|\b(?:hf|gsk)_[A-Za-z0-9]{12,}|\bAKIA[A-Z0-9]{12,}|(?i:\bbearer\s+)\S+"
)
# Names that we or the configuration made up look like this; a sentence does not.
_LONG_NAME: Final = re.compile(r"`[^`]{65,}`")
_QUOTED: Final = re.compile(r"`[^`]*`")
_MOST_TOLD_CHARS: Final = 500
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
# A terminal obeys C1 controls too, and some readers take U+2028 for a new line; JSON escapes C0 itself.
_CONTROLS: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}

_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500
# The caller hung up: worth a line, nobody's fault.
_CALLER_GONE: Final = 499


def clean(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """Make text safe to log: redact secrets, escape control characters and lone surrogates, and bound the length."""
    if len(text) > limit:
        # A traceback that a library sent as text tells what happened in its last line.
        text = text[: limit // 4] + " … " + text[-(limit - limit // 4) :]
    text = text.encode("utf-8", "backslashreplace").decode()
    return _SECRET.sub("[redacted]", text).translate(_CONTROLS)


def _clean_value(value: Any) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return clean(value)
        case dict():
            return {clean(str(key), 64): _clean_value(item) for key, item in list(value.items())[:MAX_FIELDS]}
        case list() | tuple():
            return [_clean_value(item) for item in value[:MAX_FIELDS]]
        case _:
            # Its text is unknown to us, so only its kind is told.
            return f"<{type(value).__name__}>"


class JsonFormatter(logging.Formatter):
    """A formatter of `logger.info("event", extra={"fields": {...}})` as one JSON line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": clean(_event(record)),
        }
        # Fields from the allow-list are clean already.
        line |= getattr(record, "checked_fields", {})
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            for name, value in list(fields.items())[:MAX_FIELDS]:
                line.setdefault(clean(str(name), 64), _clean_value(value))
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = _exception(record.exc_info[1])
        return msgspec.json.encode(line).decode()


def _event(record: logging.LogRecord) -> str:
    if record.name.partition(".")[0] in _OWN:
        try:
            return record.getMessage()
        except (TypeError, ValueError):
            return str(record.msg)
    # asyncio prints the repr of a failed task, and so its exception's text; cut before any repr.
    first_line = str(record.msg).partition("\n")[0]
    return re.split(r"[<({\[]", first_line, maxsplit=1)[0].strip()


def _exception(error: BaseException) -> list[dict[str, Any]]:
    """Render the exception chain as types and frames, without messages, which may quote a prompt."""
    chain: list[dict[str, Any]] = []
    current: BaseException | None = error
    while current is not None and len(chain) < MAX_CAUSES:
        chain.append(
            {
                "type": f"{type(current).__module__}.{type(current).__qualname__}",
                "frames": _frames(current.__traceback__),
            }
        )
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain


def _frames(where: TracebackType | None) -> list[str]:
    # Frames without their source lines: cheap, and a literal in the source stays there.
    frames = [f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}" for frame, line in traceback.walk_tb(where)]
    return [clean(frame, 300) for frame in frames[-MAX_FRAMES:]]


class TextFormatter(JsonFormatter):
    """A formatter of the same line for a person at a terminal: time, level, event, and the fields that are set."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = msgspec.json.decode(super().format(record))
        at, level, event = (line.pop(name) for name in ("at", "level", "event"))
        line.pop("logger")
        told = " ".join(f"{name}={_as_text(value)}" for name, value in line.items() if value not in (None, [], {}))
        spaced = f"  {told}" if told else ""
        # A line break in it would look like a line of its own; JSON escapes it by itself.
        return f"{at[11:19]} {level:<7} {event}{spaced}".replace("\r", "\\r").replace("\n", "\\n")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class QueuedLines(logging.Handler):
    """A handler that writes lines from a thread of its own, so that a full pipe never stops the event loop. The queue
    is bounded: lines that do not fit are dropped, counted, and the count is logged.
    """

    def __init__(self, stream: BinaryIO, *, max_queued: int = MAX_QUEUED_LINES, form: LogForm = "json") -> None:
        super().__init__()
        self.setFormatter(TextFormatter() if form == "text" else JsonFormatter())
        self.dropped = 0
        self._closed = False
        self._stream = stream
        self._lines: queue.Queue[bytes | threading.Event | None] = queue.Queue(max_queued)
        self._thread = threading.Thread(target=self._write_all, name="weighbridge-logs", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode() + b"\n"
        except (TypeError, ValueError, RecursionError):
            line = b'{"level":"error","logger":"weighbridge.logs","event":"a log record could not be written"}\n'
        if self._closed:
            # The last lines of a process that stops.
            self._write(line)
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def _write_all(self) -> None:
        reported = 0
        while (line := self._lines.get()) is not None:
            if isinstance(line, threading.Event):
                line.set()
                continue
            if self.dropped > reported:
                self._write(_dropped_line(self.dropped - reported))
                reported = self.dropped
            self._write(line)

    def _write(self, line: bytes) -> None:
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):
            # Nobody reads any more; there is no better place to say so.
            self.dropped += 1

    def flush(self) -> None:
        """Wait until the lines queued so far are written, two seconds at most."""
        if self._closed:
            return
        written = threading.Event()
        try:
            self._lines.put(written, timeout=1)
        except queue.Full:
            return
        written.wait(1)

    def close(self) -> None:
        """Write the queued lines, for a few seconds at most, and stop the thread. Idempotent."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(queue.Full):
                self._lines.put(None, timeout=1)
                self._thread.join(2)
        super().close()


def _dropped_line(count: int) -> bytes:
    line = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": "warning",
        "logger": "weighbridge.logs",
        "event": "log lines dropped",
        "lines": count,
    }
    return msgspec.json.encode(line) + b"\n"


def configure_logging(level: str = "INFO", stream: BinaryIO | None = None, form: LogForm | None = None) -> QueuedLines:
    """Send every logger to stderr, uvicorn's too. Start uvicorn with `log_config=None, access_log=False`.
    Return the handler: `close()` it last, to write the lines still queued. Calling again replaces the former one.

    Without a `form` it is text on a terminal and JSON everywhere else.
    """
    out: BinaryIO = sys.stderr.buffer if stream is None else stream
    handler = QueuedLines(out, form=form or ("text" if out.isatty() else "json"))
    root = logging.getLogger()
    for former in list(root.handlers):
        if isinstance(former, QueuedLines):
            root.removeHandler(former)
            former.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _UVICORN:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
    for name in _SILENT:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = False
        logger.addHandler(logging.NullHandler())
    return handler


class RequestLog:
    """An observer that logs failed requests and a share of the successful ones. The share is drawn from the
    request id alone, so every worker, and every system that follows the same rule, chooses the same ones.

    Of those that fail alike within a second some are logged and the rest is counted: an outage fails thousands.
    """

    def __init__(
        self,
        *,
        share: float = 0.01,
        logger: logging.Logger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"the share of successes to log must be between 0 and 1, not {share}")
        self._share = share
        self._logger = logger or logging.getLogger(_REQUESTS)
        self._clock = clock
        self._second = -1
        self._failed: dict[tuple[int, str | None], int] = {}
        """Failures in this second, by status and code."""

    def finished(self, outcome: RequestOutcome) -> None:
        failed = outcome.status >= _CLIENT_ERROR or outcome.error_code is not None
        if not failed and not is_sampled(outcome.request_id, self._share):
            return
        if failed and not self._is_told(outcome):
            return
        level = _level(outcome)
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "request", extra={"checked_fields": request_fields(outcome)})

    def _is_told(self, outcome: RequestOutcome) -> bool:
        """Count a failure. Return True for the first of its kind in this second."""
        if (second := int(self._clock())) != self._second:
            self._second = second
            self.tell_left_out()
        kind = outcome.status, outcome.error_code
        count = self._failed[kind] = self._failed.get(kind, 0) + 1
        return count <= MOST_ALIKE_A_SECOND

    def tell_left_out(self) -> None:
        """Log how many failures have no line of their own yet."""
        for (status, code), count in self._failed.items():
            if count > MOST_ALIKE_A_SECOND:
                fields = {"status": status, "error_code": safe_name(code), "requests": count - MOST_ALIKE_A_SECOND}
                self._logger.warning("further requests failed alike", extra={"checked_fields": fields})
        self._failed.clear()


def is_sampled(request_id: str, share: float) -> bool:
    """Return True for `share` of all request ids, always the same ones."""
    return zlib.crc32(request_id.encode("utf-8", "surrogatepass")) < share * 2**32


def _level(outcome: RequestOutcome) -> int:
    if outcome.status >= _SERVER_ERROR:
        return logging.ERROR
    if outcome.status == _CALLER_GONE:
        return logging.INFO
    # A stream that broke after its first byte keeps its status 200 and carries an error code.
    return logging.WARNING if outcome.status >= _CLIENT_ERROR or outcome.error_code is not None else logging.INFO


def request_fields(outcome: RequestOutcome) -> dict[str, Any]:
    """Return the loggable fields of an outcome. Text is included only when it looks like a name, and the alias only
    when it led to an attempt: otherwise it is any text that the caller typed.
    """
    return {
        "request_id": safe_name(outcome.request_id),
        "organisation_id": safe_name(outcome.organisation_id),
        "team_id": safe_name(outcome.team_id),
        "key_id": safe_name(outcome.key_id),
        "operation": safe_name(outcome.operation),
        "tier": safe_name(outcome.tier),
        "alias": safe_name(outcome.alias) if outcome.attempts else None,
        "stream": outcome.stream,
        "status": outcome.status,
        "error_code": safe_name(outcome.error_code),
        "error_message": told_message(outcome.error_message, says_names=bool(outcome.attempts)),
        "target_id": safe_name(outcome.target_id),
        "reason": safe_name(outcome.reason),
        "cached": safe_name(outcome.cached),
        "complexity": outcome.complexity,
        "classifier": safe_name(outcome.classifier),
        "classify_s": outcome.classify_s,
        "escalated_from": safe_name(outcome.escalated_from),
        "weakness": outcome.weakness,
        "agreement": outcome.agreement,
        "loop_steps": outcome.loop_steps,
        "struggle": outcome.struggle,
        "guard": [[each.side, each.name, each.action, each.count] for each in outcome.guard] or None,
        "attempts": [_attempt_fields(attempt) for attempt in outcome.attempts[:MAX_LOGGED_ATTEMPTS]],
        "input_tokens": outcome.input_tokens,
        "cached_input_tokens": outcome.cached_input_tokens,
        "output_tokens": outcome.output_tokens,
        "cost_nanousd": outcome.cost_nanousd,
        "baseline_nanousd": outcome.baseline_nanousd,
        "ttft_s": outcome.ttft_s,
        "tpot_s": outcome.tpot_s,
        "duration_s": outcome.duration_s,
    }


def told_message(message: str | None, *, says_names: bool) -> str | None:
    """Return the caller's error message without long names, and without any quoted name unless `says_names`: where no
    attempt was made it may be any text that the caller typed.
    """
    pattern = _LONG_NAME if says_names else _QUOTED
    return None if message is None else clean(pattern.sub("`…`", message), _MOST_TOLD_CHARS)


def _attempt_fields(attempt: AttemptOutcome) -> dict[str, Any]:
    return {
        "target_id": safe_name(attempt.target_id),
        "deployment_id": safe_name(attempt.deployment_id),
        "provider": safe_name(attempt.provider),
        "result": attempt.result,
        "duration_s": attempt.duration_s,
        **({"continues": True} if attempt.continues else {}),
        **({} if attempt.error is None else _failure_fields(attempt)),
    }


def _failure_fields(attempt: AttemptOutcome) -> dict[str, Any]:
    """Return the kind of failure, the upstream's status and its own words, which were cleaned before."""
    return {
        "error": safe_name(attempt.error),
        "upstream_status": attempt.status,
        "upstream_said": attempt.detail or None,
    }


def safe_name(text: str | None) -> str | None:
    """Return `text` when it looks like a configured name and not like a secret, else a placeholder."""
    if not text:
        return None
    return text if _NAME.fullmatch(text) and _SECRET.search(text) is None else "[not a name]"
