import io
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dispatch.outcome import AttemptOutcome, RequestOutcome
from proxy.settle.observers.logs import (
    MAX_QUEUED_LINES,
    MOST_ALIKE_A_SECOND,
    JsonFormatter,
    QueuedLines,
    RequestLog,
    TextFormatter,
    clean,
    configure_logging,
    is_sampled,
    request_fields,
)
from tests.proxy.settle.observers.outcomes import an_attempt, an_outcome

_PROMPT = "canary: my patient's diagnosis is gout"
_KEY = "wb-0123456789ab-CanaryCanaryCanaryCanaryCanaryCanary"


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def lines(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(JsonFormatter().format(record)) for record in self.records]


def _request_log(share: float, clock: Callable[[], float] = lambda: 0.0) -> tuple[RequestLog, _Kept]:
    # A logger of the test's own, outside the tree that pytest listens to.
    logger = logging.Logger("weighbridge.request")  # noqa: LOG001
    kept = _Kept()
    logger.addHandler(kept)
    return RequestLog(share=share, logger=logger, clock=clock), kept


def _format(name: str, message: str, *args: object, error: BaseException | None = None, **extra: Any) -> dict[str, Any]:
    info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord(name, logging.ERROR, __file__, 1, message, args, info)
    record.__dict__.update(extra)
    line: dict[str, Any] = msgspec.json.decode(JsonFormatter().format(record))
    return line


@pytest.fixture
def stream() -> Iterator[io.BytesIO]:
    """Where a configured logging writes; the root logger is given back as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.BytesIO()
    for handler in list(root.handlers):
        if isinstance(handler, QueuedLines):
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    ("status", "error_code"), [(400, None), (401, "invalid_api_key"), (499, "caller_gone"), (502, None), (200, "cut")]
)
def test_every_error_is_logged(status: int, error_code: str | None) -> None:
    """Whatever the share of successes, a request that failed has its line."""
    log, kept = _request_log(share=0.0)
    log.finished(an_outcome(status=status, error_code=error_code))
    (line,) = kept.lines()
    assert (line["status"], line["error_code"]) == (status, error_code)


def test_those_that_fail_alike_are_counted_beyond_some_a_second() -> None:
    """Others have their lines meanwhile, and what has none is told as a number."""
    now = 5.0
    log, kept = _request_log(share=0.0, clock=lambda: now)
    for _ in range(1_000):
        log.finished(an_outcome(status=503, error_code="upstream_overloaded"))
    log.finished(an_outcome(status=502, error_code="upstream_unavailable"))
    assert len(kept.records) == MOST_ALIKE_A_SECOND + 1
    now = 6.0
    log.finished(an_outcome(status=503, error_code="upstream_overloaded"))
    told = kept.lines()[-2]
    assert (told["event"], told["requests"]) == ("further requests failed alike", 1_000 - MOST_ALIKE_A_SECOND)
    assert (told["status"], told["error_code"]) == (503, "upstream_overloaded")
    assert kept.lines()[-1]["event"] == "request"
    log.tell_left_out()
    assert kept.lines()[-1]["event"] == "request"


def test_one_success_in_a_hundred_is_logged() -> None:
    """The share holds over many requests."""
    log, kept = _request_log(share=0.01)
    for number in range(20_000):
        log.finished(an_outcome(request_id=f"req_{number}"))
    assert 140 <= len(kept.records) <= 260


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_sampling_depends_on_the_id_alone(request_id: str, one: float, other: float) -> None:
    """The same request is chosen everywhere, and a larger share only adds to a smaller one's choice."""
    small, large = sorted((one, other))
    assert is_sampled(request_id, small) == is_sampled(request_id, small)
    assert is_sampled(request_id, small) <= is_sampled(request_id, large)
    assert is_sampled(request_id, 1.0)
    assert not is_sampled(request_id, 0.0)


def test_a_share_outside_0_and_1_is_refused() -> None:
    """A share is not a percentage."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        RequestLog(share=1.5)


@pytest.mark.parametrize("secret", [_PROMPT, _KEY, "Bearer abc.def", "line\nbreak", "x" * 5_000])
@pytest.mark.parametrize("attempted", [True, False])
def test_no_free_text_of_an_outcome_is_written(secret: str, attempted: bool) -> None:
    """A prompt or a key in any text of an outcome, its attempts included, does not reach the line."""
    texts = {
        field.name: secret
        for field in msgspec.structs.fields(RequestOutcome)
        if isinstance(getattr(an_outcome(), field.name), str) or field.name == "error_code"
    }
    attempt_texts = {
        field.name: secret
        for field in msgspec.structs.fields(AttemptOutcome)
        if isinstance(getattr(an_attempt(), field.name), str) and field.name != "result"
    }
    attempts = (msgspec.structs.replace(an_attempt(), **attempt_texts),) if attempted else ()
    log, kept = _request_log(share=1.0)
    log.finished(an_outcome(**texts, attempts=attempts))
    (record,) = kept.records
    assert secret not in JsonFormatter().format(record)
    assert len(texts) >= 9


def test_an_alias_that_led_nowhere_is_not_written() -> None:
    """An unknown model name is whatever the caller typed; a known one is the configuration's."""
    assert request_fields(an_outcome(alias="hunter2", attempts=(), target_id=None))["alias"] is None
    assert request_fields(an_outcome(alias="fast"))["alias"] == "fast"


def test_the_fields_are_a_closed_list() -> None:
    """A field added to the outcome is not logged until somebody chooses to."""
    for_learning = {"prediction", "settings", "prompt", "conversation", "request_digest"}
    for_counting = {"asked_model", "out_of_use", "told_after_s", "end_user"}
    for_traces = {"waits"}
    known = {field.name for field in msgspec.structs.fields(RequestOutcome)}
    assert set(request_fields(an_outcome())) == known - for_learning - for_counting - for_traces
    of_failures = {"error", "status", "detail"}
    # Logged where it is so, and what metrics and traces alone are made of.
    of_some = {"continues", "disputed_nanousd", "unknown"} | {"pool", "version", "ttft_s", "tpot_s", "waited_s"}
    assert (
        set(request_fields(an_outcome())["attempts"][0])
        == {field.name for field in msgspec.structs.fields(AttemptOutcome)} - of_failures - of_some
    )


@pytest.mark.parametrize(
    ("status", "error_code", "level"),
    [(200, None, "info"), (200, "cut", "warning"), (404, None, "warning"), (499, None, "info"), (503, None, "error")],
)
def test_the_level_says_whose_fault_it_was(status: int, error_code: str | None, level: str) -> None:
    """Ours is an error, the caller's a warning, a hang-up is information."""
    log, kept = _request_log(share=1.0)
    log.finished(an_outcome(status=status, error_code=error_code))
    assert kept.lines()[0]["level"] == level


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text()))
def test_any_record_is_one_safe_bounded_line(event: str, value: str, fields: dict[str, str]) -> None:
    """Control characters, lone surrogates and new lines cannot leave their field."""
    record = logging.LogRecord("weighbridge.x", logging.INFO, __file__, 1, event, (), None)
    record.__dict__["fields"] = {**fields, "planted": value}
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in line)
    assert msgspec.json.decode(line)["level"] == "info"


def test_a_long_text_is_cut() -> None:
    """However long a message is, its line is bounded."""
    line = _format("weighbridge.x", "e" * 100_000, fields={"a": "v" * 100_000, "b": ["w"] * 100_000})
    assert len(msgspec.json.encode(line)) < 10_000


def test_a_field_cannot_replace_the_record() -> None:
    """Level, time and event are the record's own."""
    line = _format("weighbridge.x", "event", fields={"level": "debug", "event": "other"})
    assert (line["level"], line["event"]) == ("error", "event")


def _parse() -> None:
    raise ValueError(_PROMPT)


def _fail() -> None:
    try:
        _parse()
    except ValueError as cause:
        raise RuntimeError(_KEY) from cause


def test_a_traceback_tells_where_and_not_what() -> None:
    """The message of an exception may quote a prompt: kinds, causes and places are logged."""
    with pytest.raises(RuntimeError) as caught:
        _fail()
    line = _format("weighbridge.x", "failed", error=caught.value)
    text = msgspec.json.encode(line).decode()
    assert [each["type"] for each in line["exception"]] == ["builtins.RuntimeError", "builtins.ValueError"]
    assert "test_logs.py" in text
    assert " _fail" in text
    assert "canary" not in text.lower()


def test_other_libraries_are_not_trusted_with_arguments() -> None:
    """A library may write an exception's repr into its message or a body into the arguments."""
    leaked = f"Task exception was never retrieved\nfuture: <Task exception=ValueError('{_PROMPT}')>"
    assert _format("asyncio", leaked)["event"] == "Task exception was never retrieved"
    assert _PROMPT not in str(_format("aiohttp.client", "sent %s", _PROMPT))
    assert _format("uvicorn.error", "Started server process [%d]", 7)["event"] == "Started server process [7]"


def test_a_key_in_a_message_is_masked() -> None:
    """Our own messages should hold no key; when one does, its shape gives it away."""
    assert _KEY not in clean(f"key {_KEY} was refused")
    assert "sk-proj" not in clean("upstream said: Bearer sk-proj-0123456789abcdef")
    assert clean("task-0123456789abcdef and llama-3-70b stay") == "task-0123456789abcdef and llama-3-70b stay"


def test_an_unknown_object_is_told_by_its_kind() -> None:
    """Nothing is written by calling repr on what might hold a secret."""
    line = _format("weighbridge.x", "event", fields={"thing": an_attempt(), "raw": b"secret"})
    assert (line["thing"], line["raw"]) == ("<AttemptOutcome>", "<bytes>")


def test_a_stuck_reader_never_blocks() -> None:
    """When nobody reads, lines beyond the bound are dropped and the loss is told once there is room."""
    free = threading.Event()
    begun = threading.Event()

    class Stuck(io.BytesIO):
        def write(self, data: Any) -> int:
            begun.set()
            free.wait(10)
            return super().write(data)

    stuck = Stuck()
    handler = QueuedLines(stuck, max_queued=5)
    logger = logging.Logger("weighbridge.test")  # noqa: LOG001 - not shared with other tests
    logger.addHandler(handler)
    logger.info("first")
    assert begun.wait(10)
    for number in range(50):
        logger.info("line %d", number)
    assert handler.dropped == 45
    free.set()
    handler.close()
    events = [msgspec.json.decode(line) for line in stuck.getvalue().splitlines()]
    assert [event.get("lines") for event in events if event["event"] == "log lines dropped"] == [45]
    assert len(events) == 7
    assert MAX_QUEUED_LINES == 10_000


def test_the_last_lines_are_written() -> None:
    """What is logged after the end of the writer's thread still comes out, and closing twice is harmless."""
    stream = io.BytesIO()
    handler = QueuedLines(stream)
    handler.close()
    handler.handle(logging.LogRecord("weighbridge.x", logging.INFO, __file__, 1, "goodbye", (), None))
    handler.close()
    assert msgspec.json.decode(stream.getvalue())["event"] == "goodbye"


def test_a_broken_pipe_is_no_error() -> None:
    """A reader that went away stops nothing."""

    class Broken(io.BytesIO):
        def write(self, data: Any) -> int:
            raise BrokenPipeError

    handler = QueuedLines(Broken())
    handler.handle(logging.LogRecord("weighbridge.x", logging.INFO, __file__, 1, "lost", (), None))
    handler.close()
    assert handler.dropped == 1


def test_uvicorn_and_litellm_follow_the_configuration(stream: io.BytesIO) -> None:
    """The messages of uvicorn become JSON; its access log and litellm, which quote requests, are silent."""
    handler = configure_logging("info", stream)
    logging.getLogger("uvicorn.error").info("Application startup complete.")
    logging.getLogger("uvicorn.access").info('%s - "%s"', "127.0.0.1", _PROMPT)
    logging.getLogger("LiteLLM").error(_PROMPT)
    logging.getLogger("weighbridge.request").debug("too fine")
    handler.flush()
    (line,) = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    assert (line["event"], line["level"]) == ("Application startup complete.", "info")


def test_configuring_twice_writes_once(stream: io.BytesIO) -> None:
    """A reload replaces the former handler."""
    configure_logging("INFO", io.BytesIO())
    handler = configure_logging("INFO", stream)
    logging.getLogger("weighbridge.x").warning("once")
    handler.flush()
    assert len(stream.getvalue().splitlines()) == 1


def test_a_person_reads_one_line_of_text() -> None:
    """Time, level, event and the fields that are set; a line break stays within its line."""
    record = logging.LogRecord("weighbridge.x", logging.WARNING, "", 1, "two\nlines", None, None)
    record.fields = {"status": 502, "target_id": "gpt-4o", "error": None, "tries": []}
    record.created = 0.0
    assert TextFormatter().format(record) == "00:00:00 warning two\\nlines  status=502 target_id=gpt-4o"
