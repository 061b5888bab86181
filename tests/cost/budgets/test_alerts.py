"""Warnings: one for each budget, period and threshold."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from cost.budgets.alerts import TYPE, Alerts
from cost.budgets.budget import BudgetStatus
from cost.times import DAY_US
from tests.cost.budgets.crowd import NOON_US, budget


class Outbox:
    """Keeps a message once."""

    def __init__(self) -> None:
        self.messages: dict[str, tuple[str, str, dict[str, Any]]] = {}
        self.puts = 0
        self.down = False

    async def put(self, message_id: str, destination: str, type_: str, body: Mapping[str, Any]) -> bool:
        self.puts += 1
        if self.down:
            raise OSError("no database")
        new = message_id not in self.messages
        self.messages.setdefault(message_id, (destination, type_, dict(body)))
        return new


def standing(spent: int, at_us: int = NOON_US, **changes: Any) -> BudgetStatus:
    return BudgetStatus(budget=budget(1_000, webhook="finance", **changes), at_us=at_us, spent_nanousd=spent)


async def test_each_threshold_is_told_once_in_a_period() -> None:
    """By whichever process comes first; a new period begins anew."""
    outbox = Outbox()
    one, other = (Alerts(outbox.put, {"finance"}) for _ in range(2))
    for spent in (0, 499, 500, 600, 850):
        await one.tell([standing(spent)])
        await other.tell([standing(spent)])
    assert sorted(outbox.messages) == ["budget/b1/2026-04-01/50", "budget/b1/2026-04-01/80"]
    assert outbox.puts == 4
    await one.tell([standing(500, NOON_US + 30 * DAY_US)])
    assert "budget/b1/2026-05-01/50" in outbox.messages


async def test_a_message_says_all_that_finance_needs() -> None:
    """Whose budget, how much of it, when it resets; amounts are exact text."""
    outbox = Outbox()
    await Alerts(outbox.put, {"finance"}).tell([standing(1_001)])
    assert outbox.messages["budget/b1/2026-04-01/100"] == (
        "finance",
        TYPE,
        {
            "text": "The budget of team `team_payments` has reached 100 %: $0.000001001 of $0.000001 a month. "
            "It is hard: what it has no room for is refused.",
            "budget_id": "b1",
            "organisation_id": "default",
            "scope": "team",
            "scope_id": "team_payments",
            "period": "month",
            "period_start": "2026-04-01T00:00:00Z",
            "resets_at": "2026-05-01T00:00:00Z",
            "kind": "hard",
            "limit_usd": "0.000001",
            "spent_usd": "0.000001001",
            "share": "1.0010",
            "threshold": "1.00",
        },
    )


@pytest.mark.parametrize(
    ("kind", "on_exhausted", "then"),
    [
        ("soft", "refuse", "It is soft: it warns and refuses nothing."),
        ("soft", "downgrade", "Requests now go to the cheapest capable model."),
        ("hard", "refuse", "It is hard: what it has no room for is refused."),
    ],
)
async def test_a_message_says_what_happens_to_requests(kind: Any, on_exhausted: Any, then: str) -> None:
    """In words, which is what mail and Slack show: a soft budget refuses nothing."""
    outbox = Outbox()
    status = standing(1_001)
    told = msgspec.structs.replace(status.budget, kind=kind, on_exhausted=on_exhausted)
    await Alerts(outbox.put, {"finance"}).tell([msgspec.structs.replace(status, budget=told)])
    assert outbox.messages["budget/b1/2026-04-01/100"][2]["text"].endswith(then)


async def test_what_the_outbox_did_not_take_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    """And a budget without a webhook, or with one that nobody configured, tells nobody; the log says so once."""
    outbox = Outbox()
    alerts = Alerts(outbox.put, {"finance"})
    outbox.down = True
    with pytest.raises(OSError, match="no database"):
        await alerts.tell([standing(500)])
    outbox.down = False
    silent = [BudgetStatus(budget=budget(1, webhook=name), at_us=NOON_US, spent_nanousd=9) for name in ("", "unknown")]
    for _ in range(2):
        await alerts.tell([standing(500), *silent])
    assert [record.getMessage() for record in caplog.records] == [
        "a budget's webhook 'unknown' is not configured here: nobody is told of it"
    ]
    assert list(outbox.messages) == ["budget/b1/2026-04-01/50"]
