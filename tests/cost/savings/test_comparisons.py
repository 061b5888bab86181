"""The savings report's arithmetic and its verdicts, on books that were computed by hand."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.fleet.bill import allocate, bill_of, weights_ps
from cost.prices import price_from_usd
from cost.savings.comparisons import (
    ComparisonResult,
    Figures,
    FleetTotals,
    Line,
    Word,
    ceiling,
    compare,
    compare_fleet,
    cost_parts,
    figures,
    floor,
    judge,
    quality,
    saving_share,
)
from cost.savings.holdout import Measured
from cost.times import DAY_US
from cost.usage import Usage
from tests.cost.by_meter import by_meter
from tests.cost.fleet.pools import DAY, pool

TARGET = Decimal("0.40")
CENT = 10_000_000


def line(**changes: Any) -> Line:
    """200 requests bought at 3 $ that were worth 10 $, 4 $ and 3 $ in the three comparisons."""
    usual: dict[str, Any] = {
        "day_us": DAY,
        "target_id": "small",
        "pool": "",
        "origin": "caller",
        "ground": "measured",
        "served": 200,
        "attempts": 200,
        "cost_nanousd": 300 * CENT,
        "baselines": (1_000 * CENT, 400 * CENT, 300 * CENT),
        "rows": (200, 200, 200),
    }
    return Line(**{**usual, **changes})


def posted(origin: str, cents: int, **changes: Any) -> Line:
    """An amount without a request."""
    nothing = {"served": 0, "attempts": 0, "baselines": (0, 0, 0), "rows": (0, 0, 0)}
    return line(origin=origin, cost_nanousd=cents * CENT, **{**nothing, **changes})


BOOKS = (
    line(),
    # 20 attempts at another target failed, and 30 cents were paid for what they had said until then.
    posted("caller", 30, target_id="large", attempts=20),
    posted("shadow", 50, target_id="large", attempts=5),
    line(target_id="llama", pool="h100", served=100, attempts=105, cost_nanousd=100 * CENT, rows=(100, 100, 100)),
    posted("true-up", 55, target_id="llama", pool="h100"),
    posted("idle", 240, target_id="h100", pool="h100"),
    posted("correction", -5),
)


def test_books_computed_by_hand_to_the_cent() -> None:
    """Everything that was spent stands on one side: 3.00 + 0.30 + 0.50 + 1.00 + 0.55 + 2.40 - 0.05 + 1.30 = 9.00 $."""
    reference, cheapest, hosted = compare(figures(BOOKS), 130 * CENT, TARGET)
    assert {each.cost_nanousd for each in (reference, cheapest, hosted)} == {900 * CENT}
    assert (reference.baseline_nanousd, reference.saving_nanousd) == (2_000 * CENT, 1_100 * CENT)
    assert (reference.share, reference.coverage, reference.verdict) == (Decimal("0.55"), Decimal(1), "met")
    assert (cheapest.baseline_nanousd, cheapest.share, cheapest.verdict) == (800 * CENT, Decimal("-0.125"), "not met")
    assert (hosted.baseline_nanousd, hosted.share, hosted.verdict) == (600 * CENT, Decimal("-0.5"), "not met")


def test_the_parts_of_the_cost_add_up() -> None:
    """A finance person finds every cent again."""
    parts = cost_parts(BOOKS, 130 * CENT)
    cents = {name: amount // CENT for name, amount in parts.items()}
    assert cents == {"requests": 430, "shadow": 50, "corrections": -5, "true-up": 55, "idle": 240, "gateway": 130}
    assert sum(parts.values()) == compare(figures(BOOKS), 130 * CENT, TARGET)[0].cost_nanousd


def test_a_request_without_a_figure_is_on_neither_side() -> None:
    """50 of 200 have no figure: a quarter of what such requests cost is left out, and the coverage tells it."""
    partly = line(rows=(200, 150, 0), baselines=(1_000 * CENT, 300 * CENT, 0))
    failed = posted("caller", 30, target_id="large", attempts=20)
    reference, cheapest, hosted = compare(figures([partly, failed]), 0, TARGET)
    assert (reference.cost_nanousd, reference.coverage) == (330 * CENT, Decimal(1))
    assert (cheapest.cost_nanousd, cheapest.coverage) == ((225 + 30) * CENT, Decimal("0.75"))
    assert (hosted.cost_nanousd, hosted.coverage) == (30 * CENT, Decimal(0))
    assert (cheapest.verdict, hosted.verdict, hosted.share) == ("not enough data", "not enough data", None)


def test_what_was_trued_up_is_left_out_with_its_requests() -> None:
    """A pool's requests without a figure take their part of the true-up with them; idle stays."""
    own = line(target_id="llama", pool="h100", rows=(0, 200, 200), baselines=(0, 400 * CENT, 300 * CENT))
    more = posted("true-up", 100, target_id="llama", pool="h100")
    idle = posted("idle", 70, target_id="h100", pool="h100")
    assert compare(figures([own, more, idle]), 0, TARGET)[0].cost_nanousd == 70 * CENT
    assert compare(figures([own, more, idle]), 0, TARGET)[1].cost_nanousd == 470 * CENT


GOOD = Figures(served=1_000, attempts=1_050)
ALL = ComparisonResult(1_000, 1_000)


@pytest.mark.parametrize(
    ("found", "against", "said"),
    [
        (Figures(served=99, attempts=99), ComparisonResult(1, 99), "99 requests were served; 100 are needed"),
        (
            GOOD,
            ComparisonResult(1_000, 899),
            "89.9 % of served requests have a price to compare with; 90.0 % are needed",
        ),
        (msgspec.structs.replace(GOOD, unpriced_attempts=1), ALL, "1 attempts have no price of their own"),
        (msgspec.structs.replace(GOOD, estimated_attempts=211), ALL, "20.1 % of attempts are estimated"),
    ],
)
def test_too_little_is_told_as_that(found: Figures, against: ComparisonResult, said: str) -> None:
    """Few requests, few figures, an unknown price, or many guesses: there is no verdict, and a reason."""
    word, reasons = judge(found, against, Fraction(9, 10), TARGET)
    assert word == "not enough data"
    assert any(said in reason for reason in reasons)


def test_just_enough_is_enough() -> None:
    """The bounds themselves are good: 100 requests, 90 % covered, 20 % estimated."""
    found = Figures(served=100, attempts=100, estimated_attempts=20)
    assert judge(found, ComparisonResult(1_000, 90), Fraction(1, 2), TARGET) == ("met", ())


def test_without_a_baseline_there_is_no_verdict() -> None:
    """Nothing to compare with is not a saving."""
    assert judge(GOOD, ComparisonResult(0, 1_000), saving_share(0, 5), TARGET)[0] == "not enough data"


@pytest.mark.parametrize(
    ("cost", "word"), [(6_000, "met"), (6_001, "not met"), (0, "met"), (10_000, "not met"), (25_000, "not met")]
)
def test_the_target_itself_is_met(cost: int, word: Word) -> None:
    """40 % of 10,000 exactly is enough, a nano-dollar less is not."""
    assert judge(GOOD, ALL, saving_share(10_000, cost), TARGET)[0] == word


def test_a_share_never_looks_better_than_it_is() -> None:
    """39.999 % is told as 39.99 %, and what is needed is rounded up."""
    assert floor(Fraction(39_999, 100_000)) == Decimal("0.3999")
    assert floor(Fraction(-1, 3)) == Decimal("-0.3334")
    assert ceiling(Fraction(1, 3)) == Decimal("0.3334")


@pytest.mark.parametrize(
    ("interval", "modelled", "word", "said"),
    [
        (Measured(saving=0.3, low=0.25, high=0.35), Fraction(1, 2), "not met", "below the target"),
        (Measured(saving=0.4, low=0.3, high=0.5), Fraction(1, 2), "met", "does not decide"),
        (Measured(saving=0.4, low=0.3, high=0.5), Fraction(1, 3), "not met", "does not decide"),
        (Measured(saving=0.6, low=0.5, high=0.7), Fraction(1, 2), "met", "50.0 % to 70.0 %"),
        (Measured(saving=0.6, low=0.5, high=0.7), Fraction(1, 3), "not met", "50.0 % to 70.0 %"),
    ],
)
def test_a_measurement_can_only_take_the_verdict_away(
    interval: Measured, modelled: Fraction, word: Word, said: str
) -> None:
    """What was measured below the target overrules the model; an interval around the target is told as undecided."""
    found, reasons = judge(GOOD, ALL, modelled, TARGET, interval)
    assert found == word
    assert said in reasons[0]


def test_the_measurement_is_of_the_reference() -> None:
    """It says nothing of the other two comparisons."""
    low = Measured(saving=0.1, low=0.05, high=0.2)
    reference, cheapest, _ = compare(figures([line(baselines=(1_000 * CENT,) * 3)]), 0, TARGET, low)
    assert (reference.verdict, cheapest.verdict) == ("not met", "met")


def test_rows_of_a_pool_are_priced_by_its_bill() -> None:
    """But not where it was never up: then nobody knows what they cost."""
    own = line(pool="h100", unpriced_attempts=200)
    assert figures([own]).unpriced_attempts == 200
    assert figures([own], billed={("h100", DAY): True}).unpriced_attempts == 0
    priced = line(pool="h100")
    assert figures([priced], billed={("h100", DAY): False}).unpriced_attempts == 200


# The self-hosted verdict: two H100 at 2.95 $/h that make 4,205 tokens a second beside as many of the prompt.

H100 = pool()
PRICES = {
    "gpt-4o": ("2.50", "10"),
    "gpt-4o-mini": ("0.15", "0.60"),
    "gpt-6-luna": ("0.10", "0.50"),
    "cheapest hosted": ("0.10", "0.32"),
}


def fleet(utilisation: str, model: str = "gpt-4o", *, overhead: str = "1", replicas: int = 1) -> FleetTotals:
    """A day of traffic of 1,000 tokens in and out, that keeps one replica busy so much of the day."""
    section = pool(overhead=Decimal(overhead), replicas=replicas)
    tokens = int(Decimal(4205) * 86_400 * Decimal(utilisation))
    requests = tokens // 1_000
    bill = bill_of(section, replicas * DAY_US)
    shared = allocate(bill, [by_meter(input=tokens, output=tokens, request=requests)], weights_ps(section))
    fresh, output = PRICES[model]
    worth = price_from_usd(version="1", input_usd=fresh, output_usd=output).cost_nanousd(
        Usage(input_tokens=tokens, output_tokens=tokens)
    )
    mine = line(
        target_id="llama",
        pool="h100",
        served=requests,
        attempts=requests,
        cost_nanousd=sum(shared.shares[0]),
        baselines=(worth,) * 3,
        rows=(requests,) * 3,
    )
    return FleetTotals(bill_nanousd=bill.nanousd, up_us=bill.up_us, busy_us=shared.busy_us, served=figures([mine]))


@pytest.mark.parametrize(
    ("model", "overhead", "needed"),
    [
        ("gpt-4o", "1", "5.2"),
        ("gpt-4o", "1.3", "6.8"),
        ("gpt-4o-mini", "1", "87"),
        ("gpt-4o-mini", "1.3", "113"),
        ("gpt-6-luna", "1", "108"),
        ("gpt-6-luna", "1.3", "141"),
        ("cheapest hosted", "1", "155"),
    ],
)
@pytest.mark.parametrize("utilisation", ["0.03", "0.5", "1"])
def test_the_utilisation_that_is_needed(model: str, overhead: str, needed: str, utilisation: str) -> None:
    """As computed by hand from throughput and prices, whatever the utilisation is that it is computed at."""
    (reference, *_) = compare_fleet(fleet(utilisation, model, overhead=overhead), TARGET)
    assert reference.needed_utilisation is not None
    assert float(reference.needed_utilisation) * 100 == pytest.approx(float(needed), rel=0.01)


def test_a_day_of_the_fleet_to_the_cent() -> None:
    """Half busy: 181.656 M tokens each way are 2,270.70 $ at GPT-4o's prices, for 141.60 $ of GPUs."""
    found = fleet("0.5")
    (reference, *_) = compare_fleet(found, TARGET)
    assert (found.bill_nanousd, reference.baseline_nanousd) == (14_160 * CENT, 227_070 * CENT)
    assert found.utilisation is not None
    assert float(found.utilisation) == pytest.approx(0.5, abs=1e-5)
    # 141.60 / 2270.70 = 0.06236
    assert (reference.cost_share, reference.verdict) == (Decimal("0.0624"), "met")


def test_the_verdict_flips_at_a_utilisation_of_five_percent() -> None:
    """With the overhead of machines and people, as with none, 5 % is too little even against a dear reference."""
    for overhead in ("1", "1.3"):
        verdicts = [compare_fleet(fleet(each, overhead=overhead), TARGET)[0].verdict for each in ("0.05", "0.08")]
        assert verdicts == ["not met", "met"]


def test_the_verdict_flips_with_a_cheap_reference() -> None:
    """A day that saves most of GPT-4o's price saves nothing of a small model's, at any utilisation."""
    assert compare_fleet(fleet("0.6", "gpt-4o"), TARGET)[0].verdict == "met"
    for utilisation in ("0.6", "1"):
        (luna, *_) = compare_fleet(fleet(utilisation, "gpt-6-luna"), TARGET)
        assert luna.verdict == "not met"
        assert luna.needed_utilisation is not None
        assert luna.needed_utilisation > 1


@pytest.mark.parametrize("model", PRICES)
def test_the_needed_utilisation_is_where_the_verdict_flips(model: str) -> None:
    """A little above it the target is met, a little below it is not; above 1 it never is."""
    needed = compare_fleet(fleet("0.5", model), TARGET)[0].needed_utilisation
    assert needed is not None
    for factor, word in (("0.99", "not met"), ("1.01", "met")):
        at = needed * Decimal(factor)
        if at <= 1:
            assert compare_fleet(fleet(str(at), model), TARGET)[0].verdict == word


@given(
    st.integers(1, 100),
    st.integers(1, 50),
    st.integers(1, 50),
    st.sampled_from(sorted(PRICES)),
    st.sampled_from(["1", "1.3", "1.5"]),
)
def test_an_idle_replica_never_raises_the_saving(
    percent: int, replicas: int, more: int, model: str, overhead: str
) -> None:
    """The same traffic on more replicas: neither the report's three savings nor the fleet's verdict get better."""
    at = str(Decimal(percent) / 100)
    before, after = (fleet(at, model, overhead=overhead, replicas=each) for each in (replicas, replicas + more))
    for one, other in zip(compare_fleet(before, TARGET), compare_fleet(after, TARGET), strict=True):
        assert other.cost_nanousd >= one.cost_nanousd
        assert (other.verdict, one.verdict) != ("met", "not met")
        assert one.cost_share is not None
        assert other.cost_share is not None
        assert other.cost_share >= one.cost_share
    spent = [
        figures([posted("idle", 0, pool="h100")]) + each.served + Figures(cost_nanousd=_idle(each))
        for each in (before, after)
    ]
    for one, other in zip(*(compare(each, 0, TARGET) for each in spent), strict=True):
        assert one.share is not None
        assert other.share is not None
        assert other.share <= one.share


def _idle(found: FleetTotals) -> int:
    return found.bill_nanousd - found.served.cost_nanousd


def test_a_fleet_that_nobody_used_has_no_verdict() -> None:
    """It has a bill all the same."""
    (reference, *_) = compare_fleet(FleetTotals(bill_nanousd=14_160 * CENT, up_us=DAY_US), TARGET)
    assert (reference.verdict, reference.cost_share, reference.needed_utilisation) == ("not enough data", None, None)
    assert compare_fleet(FleetTotals(), TARGET)[0].verdict == "not enough data"


def test_the_pass_rate_and_its_interval() -> None:
    """Wilson's, by hand: 90 of 100 lie between 82.6 % and 94.5 %, none of 10 below 27.8 %."""
    found = quality(90, 100)
    assert found is not None
    assert (found.share, round(found.low, 4), round(found.high, 4)) == (0.9, 0.8256, 0.9448)
    none = quality(0, 10)
    assert none is not None
    assert (none.low, round(none.high, 4)) == (0.0, 0.2775)
    assert quality(0, 0) is None


# What was saved counts as far as it is known that the answers are as good.

SOLD = {"cost_nanousd": 100 * CENT, "baselines": (1_000 * CENT, 1_000 * CENT, 1_000 * CENT)}
KNOWN = line(target_id="known", **SOLD)
UNKNOWN = line(target_id="acme-small", ground="unmeasured", **SOLD)
PUBLISHED = line(target_id="gpt-5-nano", ground="published", **SOLD)
REFERENCE = line(target_id="gpt-4o", cost_nanousd=1_000 * CENT, baselines=(1_000 * CENT,) * 3)


@pytest.mark.parametrize(
    ("lines", "word", "said"),
    [
        ((KNOWN,), "met", ""),
        ((UNKNOWN,), "not measured", "weighbridge classifier measure acme-small"),
        # What published scores tell of is enough without the unknown: 0.9 of 2.
        ((UNKNOWN, PUBLISHED), "met", "estimated from published scores: gpt-5-nano"),
        ((UNKNOWN, UNKNOWN, PUBLISHED), "not measured", "acme-small answered"),
        ((PUBLISHED,), "met", "estimated from published scores: gpt-5-nano"),
        # Met without them, too: 1.8 of 2.9 and 1.8 of 3.
        ((KNOWN, KNOWN, UNKNOWN), "met", ""),
        ((KNOWN, KNOWN, PUBLISHED), "met", ""),
        # Half of it is known: 0.9 of 3 is less than 0.4.
        ((KNOWN, UNKNOWN, UNKNOWN), "not measured", "acme-small"),
        ((KNOWN, PUBLISHED, PUBLISHED), "met", "estimated"),
        # What is not met is not met whatever is known.
        ((UNKNOWN, *[REFERENCE] * 4), "not met", ""),
    ],
)
def test_the_target_is_met_by_what_is_known_alone(lines: tuple[Line, ...], word: str, said: str) -> None:
    """A saving at a model whose answers nobody compared is not a saving yet; published scores make it an estimate."""
    each_its_own = [msgspec.structs.replace(each, day_us=DAY + at * DAY_US) for at, each in enumerate(lines)]
    reference, cheapest, hosted = compare(figures(each_its_own), 0, TARGET)
    assert reference.verdict == word
    assert any(said in reason for reason in reference.reasons) or not (said or reference.reasons)
    assert cheapest.verdict == word
    # The same weights elsewhere answer the same.
    assert hosted.verdict in {"met", "not met"}


def test_an_unmeasured_target_of_our_own_does_not_meet_the_target_either() -> None:
    """A pool's saving is against the same baseline model."""
    served = figures([line(pool="h100", ground="unmeasured", **SOLD)])
    own = FleetTotals(bill_nanousd=100 * CENT, up_us=10, busy_us=5, served=served)
    reference, _, hosted = compare_fleet(own, TARGET)
    assert (reference.verdict, hosted.verdict) == ("not measured", "met")
