"""Books of some days for the tests of daily reports: two teams, hostile names, and what is nobody's."""

from collections.abc import Sequence
from datetime import date
from typing import Any

from cost.ledger.entries import Entry
from tests.cost.entries import settle

DAY = date(2026, 11, 20)
DAY_US = 1_795_132_800_000_000
DAY_LENGTH_US = 86_400_000_000
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def booked(request_id: str, days_before: int = 0, **fields: Any) -> Entry:
    """A settled request of a day; its cost is 1,000,000 nano-dollars, all of it output."""
    usual = {"at_us": DAY_US - days_before * DAY_LENGTH_US + 7, "served": True, "team_id": "team_a"}
    cost = fields.get("cost_nanousd", 1_000_000)
    return settle(request_id, **{**usual, "output_nanousd": cost or 0, **fields})


def books() -> Sequence[Entry]:
    """One day with everything, two days before it, and one in the month before."""
    return [
        booked("r1", tag="checkout", cached_input_tokens=300, reasoning_tokens=50),
        booked("r2", tag="=HYPERLINK(1)", target_id="gpt-4o", cost_nanousd=3_000_000_000, key_id="key_2"),
        booked("r3", tag=HOSTILE, target_id="<b>x</b>", tier="batch", cost_nanousd=None, baseline_nanousd=None),
        booked("r4", usage_source="estimated", cost_nanousd=1, baseline_nanousd=None),
        booked("r5", team_id="team_b", cost_nanousd=5_000_000),
        booked("r6", organisation_id="other", team_id="team_z", cost_nanousd=77),
        booked("r7", days_before=1, cost_nanousd=2_000_000_000),
        booked("r8", days_before=5, cost_nanousd=1_000_000_000, team_id="team_b"),
        booked("r9", days_before=25, cost_nanousd=900_000_000),
        booked(
            "idle/h100/1",
            entry="adjust",
            origin="idle",
            tier="idle",
            team_id="",
            key_id="",
            served=False,
            status=0,
            cost_nanousd=4_000_000,
            baseline_nanousd=None,
            usage_source="none",
            input_tokens=0,
            output_tokens=0,
        ),
    ]
