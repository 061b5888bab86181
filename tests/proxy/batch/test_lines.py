"""What a reply means for its line."""

import re
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from proxy.batch.batch import ClaimedLine
from proxy.batch.line_protocol import LineReply
from proxy.batch.lines import meaning_of, request_id, wait_s
from proxy.shared.retryable import Meaning
from tests.proxy.batch.made_up import Clock, a_batch, stores


def claimed(**given: int) -> ClaimedLine:
    values = {
        "number": 1,
        "start": 0,
        "size": 1,
        "tokens": 1,
        "bound_nanousd": None,
        "generation": 1,
        "failures": 0,
        **given,
    }
    return ClaimedLine(batch_id="batch_1", custom_id="c", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "code", "failures", "meaning"),
    [
        (200, "", 0, "answer"),
        (400, "context_length_exceeded", 0, "answer"),
        (402, "budget_exceeded", 0, "answer"),
        (404, "model_not_found", 0, "answer"),
        (429, "rate_limit_exceeded", 7, "not now"),
        (429, "queue_full", 7, "not now"),
        (503, "draining", 7, "not now"),
        (503, "storage_unavailable", 7, "not now"),
        (503, "upstream_overloaded", 7, "not now"),
        (502, "upstream_unavailable", 0, "again"),
        (504, "deadline_exceeded", 1, "again"),
        (500, "internal_error", 2, "answer"),
    ],
)
def test_what_may_pass_is_begun_again(status: int, code: str, failures: int, meaning: Meaning) -> None:
    """As often as allowed; what says nothing of the line does not count."""
    assert meaning_of(LineReply(status=status, body=b"", code=code), claimed(failures=failures), tries=3) == meaning


def test_waits_double_and_are_bounded() -> None:
    """What a reply says comes first."""
    failed = LineReply(status=502, body=b"")
    assert [wait_s(failed, claimed(failures=number), 0.0) for number in (0, 1, 2, 100)] == [1, 2, 4, 300]
    assert wait_s(failed, claimed(), 1.0) == 2
    assert wait_s(LineReply(status=429, body=b"", retry_after_s=7.5), claimed(failures=9), 0.0) == 7.5
    assert wait_s(LineReply(status=429, body=b"", retry_after_s=0.0), claimed(), 0.0) == 0.2


async def test_each_beginning_has_a_request_id_of_its_own(engine: AsyncEngine, tmp_path: Path) -> None:
    """In the shape of every other one, and the same whoever asks."""
    store, _ = stores(engine, tmp_path, Clock())
    batch, other = await a_batch(store, 1), await a_batch(store, 1)
    ids = {
        request_id(each, claimed(number=number, generation=generation))
        for each in (batch, other)
        for number in range(50)
        for generation in (1, 2, 11)
    }
    assert len(ids) == 300
    assert all(re.fullmatch(r"req_[0-9a-f]{28}", each) for each in ids)
    assert request_id(batch, claimed()) == request_id(batch, claimed())
