"""The calculated saving beside the measured one: who is in each, and whether they agree."""

from decimal import Decimal
from typing import Any

import pytest

from cost.savings.comparisons import Line
from cost.savings.holdout import ArmSums
from cost.savings.savings_reader import SavingsInputs
from cost.savings.savings_report import SavingsReport, comparability, savings_as_json, savings_report
from cost.times import DAY_US

DAY = 20_000 * DAY_US


def arm(costs: list[int]) -> ArmSums:
    return ArmSums(requests=len(costs), cost_nanousd=sum(costs), squares=float(sum(cost * cost for cost in costs)))


NOBODY = ArmSums()


def made(
    *,
    cost: int,
    holdout: ArmSums = NOBODY,
    control: ArmSums = NOBODY,
    served: int = 1_000,
    unbilled: str = "",
    pool: str = "",
) -> SavingsReport:
    """A day of requests that would have cost 100 each at the reference."""
    line = Line(
        day_us=DAY,
        target_id="small",
        pool=pool,
        origin="caller",
        ground="measured",
        served=served,
        attempts=served,
        cost_nanousd=cost * served,
        baselines=(100 * served, 0, 0),
        rows=(served, 0, 0),
    )
    books = SavingsInputs(start_us=DAY, end_us=DAY + DAY_US, lines=(line,), holdout=holdout, control=control)
    return savings_report(
        books,
        target=Decimal("0.4"),
        gateway_usd_per_hour=Decimal(0),
        now_us=DAY + DAY_US,
        judged=None,
        is_unbilled=lambda target_id: target_id == unbilled,
    )


def test_own_engines_without_a_bill_save_nothing_that_is_promised() -> None:
    """Their tokens are free in the books alone: the verdict says what is missing; with a pool's bill it stands."""
    reference = made(cost=0, unbilled="small").comparisons[0]
    assert reference.verdict == "not enough data"
    assert "small answered on your own engines as if for nothing: no pool of `cost.pools` says" in reference.reasons[-1]
    for billed in (made(cost=0, unbilled="other"), made(cost=0, unbilled="small", pool="h100"), made(cost=0)):
        assert billed.comparisons[0].verdict == "met"
    assert made(cost=90, unbilled="small").comparisons[0].verdict == "not met"


@pytest.mark.parametrize(("cost", "agrees"), [(40, True), (54, False)])
def test_a_calculation_outside_of_the_interval_is_told_with_who_took_part(cost: int, *, agrees: bool) -> None:
    """Measured are 60 %, give or take little; the means of both sides say whose requests were dearer."""
    found = made(cost=cost, holdout=arm([90, 110] * 50), control=arm([35, 45] * 50))
    beside = comparability(found)
    assert beside is not None
    assert beside.agrees is agrees
    assert (beside.took_part, beside.served, beside.part) == (200, 1_000, Decimal("0.2"))
    assert (beside.each_nanousd, beside.all_each_nanousd) == (40, cost)
    told = savings_as_json(found)["measured"]
    assert (told["agrees_with_calculation"], told["share_of_served"]) == (agrees, Decimal("0.2"))


def test_without_an_experiment_or_a_request_nothing_is_compared() -> None:
    """Nor is it said that they agree."""
    assert comparability(made(cost=40)) is None
    small = made(cost=40, holdout=arm([100]), control=arm([40]))
    assert comparability(small) is None
    assert savings_as_json(small)["measured"]["agrees_with_calculation"] is None
    arms: dict[str, Any] = {"holdout": arm([90, 110] * 50), "control": arm([35, 45] * 50)}
    assert comparability(made(cost=40, served=0, **arms)) is None
