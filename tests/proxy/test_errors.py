"""The one table from failures to HTTP."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cost.errors import BudgetExceeded, BudgetsUnavailable, LedgerUnavailable, UnpricedUnderBudget
from providers import errors as upstream_errors
from providers.errors import RequestRejected, UpstreamError, UpstreamRateLimited
from proxy import errors
from proxy.admit.limits import refusals
from proxy.admit.queues.queue_item import NoRoom
from proxy.batch import batch_errors
from proxy.errors import (
    FAULTS,
    BadRequest,
    Fault,
    QueueRefusal,
    Refused,
    code_of,
    error_reply,
    known_fault,
    retry_headers,
)

_DEFINE_REFUSALS = (errors, refusals, batch_errors)
_API = Path(__file__).parents[2] / "docs" / "api.md"


def _kinds_of(root: type[Refused]) -> Iterator[type[Refused]]:
    for kind in root.__subclasses__():
        if not kind.__module__.startswith("tests."):
            yield kind
            yield from _kinds_of(kind)


def subclasses(root: type[Exception], module: object) -> list[type[Exception]]:
    return [
        each for each in vars(module).values() if isinstance(each, type) and issubclass(each, root) and each is not root
    ]


@pytest.mark.parametrize("kind", subclasses(UpstreamError, upstream_errors))
def test_every_failure_upstream_has_a_row(kind: type[Exception]) -> None:
    """A new error without a row would be a 500."""
    assert known_fault(kind) is not None


def test_a_refusal_without_a_status_cannot_be_defined() -> None:
    """It tells one in its head, or is of a kind that does; the type follows from the status."""
    with pytest.raises(TypeError, match="Odd has no status"):
        type("Odd", (Refused,), {})
    assert NoRoom.fault == QueueRefusal.fault == Fault(429, "requests", "queue_full")
    with pytest.raises(LookupError):
        code_of(BadRequest)


def test_the_page_of_the_api_has_all_codes() -> None:
    """One row for each status, in order, as the classes tell them."""
    codes: dict[int, set[str]] = {}
    ours = [kind for kind in _kinds_of(Refused) if "fault" in vars(kind)]
    assert {kind.__module__ for kind in ours} == {module.__name__ for module in _DEFINE_REFUSALS}
    for fault in (*(kind.fault for kind in ours), *FAULTS.values()):
        if fault.code is not None:
            codes.setdefault(fault.status, set()).add(fault.code)
    rows = "".join(
        f"| {status} | {', '.join(f'`{code}`' for code in sorted(codes[status]))} |\n" for status in sorted(codes)
    )
    assert f"| status | codes |\n|---|---|\n{rows}\n" in _API.read_text(), rows


def test_all_four_keys_are_always_there() -> None:
    """OpenAI's clients read them all."""
    for error in (BadRequest("no", param="x"), LedgerUnavailable("full"), RuntimeError("secret detail")):
        body = json.loads(error_reply(error).body)
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}


def test_an_unexpected_failure_tells_nothing_of_itself() -> None:
    """500, and the words are ours."""
    told = error_reply(RuntimeError("secret detail"))
    assert told.status == 500
    assert b"secret" not in told.body


def test_waiting_is_told_twice() -> None:
    """In milliseconds for OpenAI's clients, in whole seconds for everybody else, never 0."""
    assert retry_headers(1.5) == [(b"retry-after", b"2"), (b"retry-after-ms", b"1500")]
    assert retry_headers(0) == [(b"retry-after", b"1"), (b"retry-after-ms", b"1")]


def test_a_rejected_request_keeps_the_upstreams_own_words() -> None:
    """Status, type, param and code come through."""
    told = error_reply(RequestRejected("bad n", deployment_id="d", status=422, error_type="t", param="n", code="c"))
    assert told.status == 422
    assert json.loads(told.body)["error"] == {"message": "bad n", "type": "t", "param": "n", "code": "c"}


def test_an_upstreams_rate_limit_may_be_retried_by_the_client() -> None:
    """It says when; every other upstream failure says not to, since the gateway tried what could be tried."""
    limited = dict(error_reply(UpstreamRateLimited("later", deployment_id="d", retry_after_s=3)).headers)
    assert limited[b"retry-after-ms"] == b"3000"
    assert b"x-should-retry" not in limited
    failed = dict(error_reply(upstream_errors.StreamCut("cut", deployment_id="d")).headers)
    assert failed[b"x-should-retry"] == b"false"


def test_a_spent_budget_says_when_to_come_back() -> None:
    """402 with the limit and the reset, and no invitation to try again; when nothing is known, a 503 that has one."""
    spent = BudgetExceeded(
        scope="team",
        scope_id="team_a",
        period_adjective="weekly",
        limit_nanousd=1_234_500_000_000,
        resets_at=datetime(2026, 4, 6, tzinfo=UTC),
        retry_after_s=90.2,
    )
    told = error_reply(spent)
    assert (told.status, json.loads(told.body)["error"]) == (
        402,
        {
            "message": "The weekly budget of team `team_a` ($1,234.50) is used up. It resets at 2026-04-06T00:00:00Z.",
            "type": "insufficient_quota",
            "param": None,
            "code": "budget_exceeded",
        },
    )
    assert dict(told.headers) == {
        b"x-should-retry": b"false",
        b"retry-after": b"91",
        b"x-weighbridge-budget-reset": b"2026-04-06T00:00:00Z",
    }
    assert (error_reply(UnpricedUnderBudget("no price")).status, error_reply(UnpricedUnderBudget("x")).code) == (
        402,
        "unpriced_under_budget",
    )
    unknown = error_reply(BudgetsUnavailable("later"))
    assert (unknown.status, unknown.code) == (503, "budgets_unavailable")
    assert b"retry-after" in dict(unknown.headers)
