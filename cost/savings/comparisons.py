"""Verdict on the savings target. Pure: the same books give the same verdict.

A comparison sets what served requests would have cost elsewhere against everything that was spent: failed attempts,
retries, shadow calls, corrections, the gateway's own machines, and GPUs that stood idle. A failure has no baseline, so
it can only make the saving less.

A served request without a baseline is left out of both sides of a comparison, and counts against its coverage. The
roll-ups do not keep what such a request cost by itself, so its part is the average attempt of its day, target and pool,
which is exact where all of them or none have the figure. What failed stays in.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

import msgspec

from cost.savings.holdout import Measured
from cost.shown import percent

ComparatorName = Literal["reference", "cheapest", "hosted"]
COMPARATORS: Final[tuple[ComparatorName, ...]] = ("reference", "cheapest", "hosted")
"""The configured reference; the cheapest commercial target that passed the same quality gate; the same weights hosted.
"""
Word = Literal["met", "not met", "not measured", "not enough data"]
Ground = Literal["measured", "published", "unmeasured"]
"""Evidence that a target's answers are as good as the reference's: outcomes of its answers, published scores alone, or
nothing. That for the reference itself is `measured`.
"""
Part = Literal["requests", "shadow", "corrections", "true-up", "idle", "gateway"]
PARTS: Final[tuple[Part, ...]] = ("requests", "shadow", "corrections", "true-up", "idle", "gateway")
"""Kinds of cost. Failed attempts and retries are requests like others."""

FEWEST_SERVED: Final = 100
LEAST_COVERAGE: Final = Fraction(9, 10)
MOST_ESTIMATED: Final = Fraction(2, 10)
MOST_UTILISATION: Final = Fraction(11, 10)
"""Highest believable utilisation; beyond it the billed hours or the weights are wrong. Weights may be off by 10 %."""
_Z95: Final = 1.959963984540054
_PLACES: Final = 10_000


class ComparisonResult(msgspec.Struct, frozen=True):
    """Sums of one comparison over some rows."""

    baseline_nanousd: int = 0
    rows: int = 0
    """Served requests that have this baseline."""
    left_out_nanousd: int = 0
    """Cost of the served requests that lack this baseline."""

    def __add__(self, other: "ComparisonResult") -> "ComparisonResult":
        return ComparisonResult(
            self.baseline_nanousd + other.baseline_nanousd,
            self.rows + other.rows,
            self.left_out_nanousd + other.left_out_nanousd,
        )


_NONE: Final = (ComparisonResult(), ComparisonResult(), ComparisonResult())


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Ledger sums of one UTC day, target, pool and origin; of the part of it that is in one day of another zone."""

    day_us: int
    """The UTC day, of which a pool is billed."""
    target_id: str
    pool: str
    origin: str
    ground: Ground
    served: int = 0
    attempts: int = 0
    estimated_attempts: int = 0
    unpriced_attempts: int = 0
    cost_nanousd: int = 0
    baselines: tuple[int, int, int] = (0, 0, 0)
    """Baseline sums in nano-dollars in the order of `COMPARATORS`; `rows` counts the requests that have each."""
    rows: tuple[int, int, int] = (0, 0, 0)
    mark_us: int | None = None
    """The organisation's own day (`Days.marks`), where it is not the UTC day."""

    @property
    def shown_us(self) -> int:
        """The day that it is shown in."""
        return self.day_us if self.mark_us is None else self.mark_us


class Grounded(msgspec.Struct, frozen=True):
    """Savings at targets of one ground, by the comparators in their order, and the targets."""

    saved_nanousd: tuple[int, int, int] = (0, 0, 0)
    targets: frozenset[str] = frozenset()

    def __add__(self, other: "Grounded") -> "Grounded":
        first, second, third = (mine + more for mine, more in zip(self.saved_nanousd, other.saved_nanousd, strict=True))
        return Grounded((first, second, third), self.targets | other.targets)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over lines; `against` has one result per comparator."""

    served: int = 0
    attempts: int = 0
    estimated_attempts: int = 0
    unpriced_attempts: int = 0
    cost_nanousd: int = 0
    against: tuple[ComparisonResult, ComparisonResult, ComparisonResult] = _NONE
    unmeasured: Grounded = Grounded()
    published: Grounded = Grounded()
    """Savings where it is not known, or known by published scores alone, that the answers are as good."""

    def __add__(self, other: "Figures") -> "Figures":
        first, second, third = (mine + theirs for mine, theirs in zip(self.against, other.against, strict=True))
        return Figures(
            served=self.served + other.served,
            attempts=self.attempts + other.attempts,
            estimated_attempts=self.estimated_attempts + other.estimated_attempts,
            unpriced_attempts=self.unpriced_attempts + other.unpriced_attempts,
            cost_nanousd=self.cost_nanousd + other.cost_nanousd,
            against=(first, second, third),
            unmeasured=self.unmeasured + other.unmeasured,
            published=self.published + other.published,
        )


Billed = Mapping[tuple[str, int], bool]
"""Per (pool, day): True if it has hours that its rows are billed for; a missing day says nothing about that."""


def figures(lines: Iterable[Line], *, billed: Billed | None = None) -> Figures:
    """Return the sums of these lines. Attempts on a billed pool count as priced, whatever they were booked at.

    Where a pool worked on a day without billed hours, nobody knows what it cost, so its attempts count as unpriced.
    """
    together: dict[tuple[int, str, str], list[Line]] = {}
    for line in lines:
        # A later posting belongs to the requests that it corrects; a shadow call serves no caller.
        posted = "" if line.origin not in {"shadow", "idle"} else line.origin
        together.setdefault((line.day_us, line.target_id, f"{line.pool}/{posted}"), []).append(line)
    total = Figures()
    for group in together.values():
        total += _group_figures(group, billed or {})
    return total


def _unpriced_attempts(line: Line, billed: Billed) -> int:
    known = billed.get((line.pool, line.day_us))
    if known is None:
        return line.unpriced_attempts
    return 0 if known else line.attempts


def _group_figures(lines: Sequence[Line], billed: Billed) -> Figures:
    served, attempts = sum(line.served for line in lines), sum(line.attempts for line in lines)
    cost = sum(line.cost_nanousd for line in lines)

    def against(place: int) -> ComparisonResult:
        rows = sum(line.rows[place] for line in lines)
        missing = min(max(0, served - rows), attempts)
        left_out = cost * missing // attempts if missing else 0
        return ComparisonResult(sum(line.baselines[place] for line in lines), rows, max(0, left_out))

    results = (against(0), against(1), against(2))
    saved = tuple(
        max(0, each.baseline_nanousd - (cost - each.left_out_nanousd)) if each.rows else 0 for each in results
    )
    grounded = Grounded((saved[0], saved[1], saved[2]), frozenset({lines[0].target_id})) if any(saved) else Grounded()
    return Figures(
        served=served,
        attempts=attempts,
        estimated_attempts=sum(line.estimated_attempts for line in lines),
        unpriced_attempts=sum(_unpriced_attempts(line, billed) for line in lines),
        cost_nanousd=cost,
        against=results,
        unmeasured=grounded if lines[0].ground == "unmeasured" else Grounded(),
        published=grounded if lines[0].ground == "published" else Grounded(),
    )


def cost_parts(lines: Iterable[Line], gateway_nanousd: int) -> dict[Part, int]:
    """Return the spending by kind in nano-dollars; the parts add up to all of it."""
    parts: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for line in lines:
        parts[_PART_OF[line.origin]] += line.cost_nanousd
    parts["gateway"] = gateway_nanousd
    return parts


_PART_OF: Final[dict[str, Part]] = {
    "caller": "requests",
    "shadow": "shadow",
    "correction": "corrections",
    "reconciliation": "corrections",
    "true-up": "true-up",
    "idle": "idle",
}


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison and its verdict. `share` is None without a baseline."""

    comparator: ComparatorName
    baseline_nanousd: int
    cost_nanousd: int
    share: Decimal | None
    """Saving / baseline to four places, rounded down: it never looks better than it is."""
    coverage: Decimal | None
    """Share of served requests that have this baseline, rounded down."""
    verdict: Word
    reasons: tuple[str, ...]

    @property
    def saving_nanousd(self) -> int:
        """Baseline less cost; negative if it would have been cheaper elsewhere."""
        return self.baseline_nanousd - self.cost_nanousd


def compare(
    found: Figures,
    extra_nanousd: int,
    target: Decimal,
    measured: Measured | None = None,
    overworked: Sequence[str] = (),
    unbilled: Sequence[str] = (),
) -> tuple[Comparison, ...]:
    """Return the three comparisons. `extra_nanousd` is spending beside the ledger, such as the gateway's machines.

    `measured` is the experiment's saving and applies to the reference alone; `overworked` are pools whose bills cannot
    be right, `unbilled` targets on own engines that no bill is known of.
    """
    return tuple(
        _comparison(
            name, found, against, extra_nanousd, target, measured if name == "reference" else None, overworked, unbilled
        )
        for name, against in zip(COMPARATORS, found.against, strict=True)
    )


def _comparison(
    name: ComparatorName,
    found: Figures,
    against: ComparisonResult,
    extra_nanousd: int,
    target: Decimal,
    measured: Measured | None,
    overworked: Sequence[str],
    unbilled: Sequence[str],
) -> Comparison:
    cost = found.cost_nanousd - against.left_out_nanousd + extra_nanousd
    share = saving_share(against.baseline_nanousd, cost)
    judged = judge(found, against, share, target, measured)
    judged = _doubt_grounds(judged, name, found, against.baseline_nanousd, cost, target)
    verdict, reasons = _doubt_unbilled(_doubt_overworked(judged, overworked), unbilled)
    return Comparison(
        comparator=name,
        baseline_nanousd=against.baseline_nanousd,
        cost_nanousd=cost,
        share=None if share is None else floor(share),
        coverage=None if not found.served else floor(Fraction(against.rows, found.served)),
        verdict=verdict,
        reasons=reasons,
    )


def saving_share(baseline_nanousd: int, cost_nanousd: int | Fraction) -> Fraction | None:
    """Return (baseline - cost) / baseline exactly; None without a baseline."""
    return Fraction(baseline_nanousd - cost_nanousd, baseline_nanousd) if baseline_nanousd > 0 else None


def needed_utilisation(busy_nanousd: Fraction, baseline_nanousd: int, target: Decimal) -> Fraction | None:
    """Return the part of their hours that replicas must be busy for their work to cost so much less than the baseline; above 1 no load
    does. None without a baseline.

    `busy_nanousd` is what the work costs on replicas that are busy all the time.
    """
    allowed = baseline_nanousd * (1 - Fraction(target))
    return busy_nanousd / allowed if allowed > 0 else None


def judge(
    found: Figures, against: ComparisonResult, share: Fraction | None, target: Decimal, measured: Measured | None = None
) -> tuple[Word, tuple[str, ...]]:
    """Return the verdict and its reasons.

    There is not enough data with fewer than 100 served requests, a baseline for fewer than 90 % of them, any attempt
    without a price, or more than 20 % of attempts estimated. Else the saving decides. Where it was measured too, an
    interval below the target overrules the model; one that contains the target is added as a reason.
    """
    missing = _missing_data(found, against)
    if share is None or missing:
        return "not enough data", missing or ("no served request has a price to compare with",)
    word: Word = "met" if share >= Fraction(target) else "not met"
    if measured is None:
        return word, ()
    interval = f"measured with 95 % certainty: {percent(measured.low)} to {percent(measured.high)}"
    if measured.high < target:
        return "not met", (f"{interval}, which is below the target",)
    if measured.low < target:
        return word, (f"{interval}, so the experiment does not decide it",)
    return word, (interval,)


def _doubt_grounds(
    judged: tuple[Word, tuple[str, ...]],
    name: ComparatorName,
    found: Figures,
    baseline_nanousd: int,
    cost_nanousd: int,
    target: Decimal,
) -> tuple[Word, tuple[str, ...]]:
    """Weaken `met` to not measured when the target is met only with savings at models whose answers nobody compared,
    and add the part that rests on published scores. The same weights elsewhere answer the same.
    """
    word, reasons = judged
    if word != "met" or name == "hosted":
        return judged
    place = COMPARATORS.index(name)
    saving = baseline_nanousd - cost_nanousd

    def is_met_without(*grounds: Grounded) -> bool:
        doubtful = sum(each.saved_nanousd[place] for each in grounds)
        return saving - doubtful >= Fraction(target) * baseline_nanousd

    if not is_met_without(found.unmeasured):
        return "not measured", (*reasons, _unmeasured_words(found.unmeasured))
    if not is_met_without(found.unmeasured, found.published):
        names = ", ".join(sorted(found.published.targets))
        return word, (*reasons, f"estimated from published scores: {names}")
    return judged


def _unmeasured_words(found: Grounded) -> str:
    names = sorted(found.targets)
    return (
        f"{', '.join(names)} answered, and how good that is beside the baseline model was not measured: "
        f"`weighbridge classifier measure {names[0]}`"
    )


def _doubt_overworked(judged: tuple[Word, tuple[str, ...]], overworked: Sequence[str]) -> tuple[Word, tuple[str, ...]]:
    """Weaken `met` to not enough data when pools are overworked: their bills are too low. Other verdicts stand."""
    if not overworked:
        return judged
    word, reasons = judged
    doubt = (
        f"by the measured weights {', '.join(overworked)} worked longer than it was up: "
        "the hours that it is billed for, or the weights, are wrong"
    )
    return "not enough data" if word == "met" else word, (*reasons, doubt)


def _doubt_unbilled(judged: tuple[Word, tuple[str, ...]], unbilled: Sequence[str]) -> tuple[Word, tuple[str, ...]]:
    """Weaken `met` to not enough data when own engines answered that nobody has said the cost of."""
    if not unbilled:
        return judged
    word, reasons = judged
    doubt = f"{', '.join(unbilled)} answered on your own engines as if for nothing: no pool of `cost.pools` says what their GPUs cost"
    return "not enough data" if word == "met" else word, (*reasons, doubt)


def _missing_data(found: Figures, against: ComparisonResult) -> tuple[str, ...]:
    reasons = []
    if found.served < FEWEST_SERVED:
        reasons.append(f"{found.served} requests were served; {FEWEST_SERVED} are needed")
    if found.served and against.rows < LEAST_COVERAGE * found.served:
        covered = percent(against.rows / found.served)
        reasons.append(
            f"{covered} of served requests have a price to compare with; {percent(LEAST_COVERAGE)} are needed"
        )
    if found.unpriced_attempts > 0:
        reasons.append(f"{found.unpriced_attempts} attempts have no price of their own")
    if found.attempts and found.estimated_attempts > MOST_ESTIMATED * found.attempts:
        estimated = percent(found.estimated_attempts / found.attempts)
        reasons.append(f"{estimated} of attempts are estimated; at most {percent(MOST_ESTIMATED)} may be")
    return tuple(reasons)


class FleetTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Our own pools: bill, replica time up and busy in microseconds, and what they served."""

    bill_nanousd: int = 0
    up_us: int = 0
    busy_us: int = 0
    overfull: bool = False
    """True if on some day tokens took longer, by the weights, than replicas were up: weights or hours are wrong."""
    served: Figures = Figures()
    """Sums of these pools' lines, whatever they are booked at."""

    def __add__(self, other: "FleetTotals") -> "FleetTotals":
        return FleetTotals(
            bill_nanousd=self.bill_nanousd + other.bill_nanousd,
            up_us=self.up_us + other.up_us,
            busy_us=self.busy_us + other.busy_us,
            overfull=self.overfull or other.overfull,
            served=self.served + other.served,
        )

    @property
    def utilisation(self) -> Fraction | None:
        """busy_us / up_us: share of replica time that tokens took, by the measured weights; None if never up."""
        return Fraction(self.busy_us, self.up_us) if self.up_us else None

    @property
    def overworked(self) -> bool:
        """True if utilisation is above `MOST_UTILISATION`, so that the bill is not believable."""
        return self.busy_us > MOST_UTILISATION * self.up_us


class FleetComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet's bill beside one baseline of its tokens."""

    comparator: ComparatorName
    cost_nanousd: int
    """Bill less the part that requests without this baseline paid."""
    baseline_nanousd: int
    cost_share: Decimal | None
    """Cost / baseline, rounded up to four places: 0.6 or less is a saving of 40 %."""
    coverage: Decimal | None
    needed_utilisation: Decimal | None
    """Utilisation at which such traffic would reach the target, rounded up; above 1 it cannot be reached."""
    verdict: Word
    reasons: tuple[str, ...]


def compare_fleet(fleet: FleetTotals, target: Decimal) -> tuple[FleetComparison, ...]:
    """Return the three comparisons of our own GPUs by themselves.

    The bill is for time up, the baseline for tokens. So at the same prices and weights twice the utilisation is twice
    the baseline for the same bill, and the target is reached at utilisation x bill / (baseline x (1 - target)).
    """
    return tuple(
        _fleet_comparison(name, fleet, against, target)
        for name, against in zip(COMPARATORS, fleet.served.against, strict=True)
    )


def _fleet_comparison(
    name: ComparatorName, fleet: FleetTotals, against: ComparisonResult, target: Decimal
) -> FleetComparison:
    # Idle time belongs to no request, so all of it stays in.
    cost, baseline = fleet.bill_nanousd - against.left_out_nanousd, against.baseline_nanousd
    judged = judge(fleet.served, against, saving_share(baseline, cost), target)
    judged = _doubt_grounds(judged, name, fleet.served, baseline, cost, target)
    verdict, reasons = _doubt_overworked(judged, ["the fleet"] if fleet.overworked else ())
    utilisation = fleet.utilisation
    needed = None if utilisation is None else needed_utilisation(utilisation * cost, baseline, target)
    return FleetComparison(
        comparator=name,
        cost_nanousd=cost,
        baseline_nanousd=baseline,
        cost_share=ceiling(Fraction(cost, baseline)) if baseline > 0 else None,
        coverage=floor(Fraction(against.rows, fleet.served.served)) if fleet.served.served else None,
        needed_utilisation=None if needed is None else ceiling(needed),
        verdict=verdict,
        reasons=reasons,
    )


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Share of judged answers that were adequate, with its 95 % confidence interval."""

    adequate: int
    judged: int
    share: float
    low: float
    high: float


def quality(adequate: int, judged: int) -> Quality | None:
    """Return the share with Wilson's score interval, which is sound for few answers; None when nothing was judged.

    E. B. Wilson (1927), "Probable inference, the law of succession, and statistical inference", JASA 22(158), 209-212.
    """
    if judged <= 0:
        return None
    share, z = adequate / judged, _Z95
    middle = (share + z * z / (2 * judged)) / (1 + z * z / judged)
    half = z / (1 + z * z / judged) * math.sqrt(share * (1 - share) / judged + z * z / (4 * judged * judged))
    return Quality(
        adequate=adequate,
        judged=judged,
        share=share,
        low=max(0.0, min(share, middle - half)),
        high=min(1.0, max(share, middle + half)),
    )


def floor(share: Fraction) -> Decimal:
    """Return a share to four places, rounded down."""
    return Decimal(share.numerator * _PLACES // share.denominator) / _PLACES


def ceiling(share: Fraction) -> Decimal:
    """Return a share to four places, rounded up."""
    return -floor(-share)
