"""Whether the saving is what was promised. Pure: the same books give the same verdict.

A comparison sets what served requests would have cost elsewhere against everything that was spent: failed attempts,
retries, shadow calls, corrections, the gateway's own machines, and GPUs that stood idle. A failure has no baseline, so
it can only make the saving less.

A served request that a comparison has no figure for is left out of both sides of it, and counts against its coverage.
The roll-ups do not keep what such a request cost by itself, so its part is the average attempt of its day, target and
pool, which is exact where all of them or none have the figure. What failed stays in.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

import msgspec

from cost.claim.holdout import Measured

ComparatorName = Literal["reference", "cheapest", "hosted"]
COMPARATORS: Final[tuple[ComparatorName, ...]] = ("reference", "cheapest", "hosted")
"""The configured reference; the cheapest commercial target that passed the same quality gate; the same weights hosted."""
Word = Literal["met", "not met", "not enough data"]
Part = Literal["requests", "shadow", "corrections", "true-up", "idle", "gateway"]
PARTS: Final[tuple[Part, ...]] = ("requests", "shadow", "corrections", "true-up", "idle", "gateway")
"""What costs are told apart by. Failed attempts and retries are requests like others."""

FEWEST_SERVED: Final = 100
LEAST_COVERAGE: Final = Fraction(9, 10)
MOST_ESTIMATED: Final = Fraction(2, 10)
MOST_UTILISATION: Final = Fraction(11, 10)
"""Beyond it the hours that a bill is for, or the weights, are wrong. Measured weights may be off by a little."""
_Z95: Final = 1.959963984540054
_PLACES: Final = 10_000


class ComparisonResult(msgspec.Struct, frozen=True):
    """What one comparison says of some rows."""

    baseline_nanousd: int = 0
    rows: int = 0
    """Served requests that have the figure."""
    left_out_nanousd: int = 0
    """What those that have none cost."""

    def __add__(self, other: "ComparisonResult") -> "ComparisonResult":
        return ComparisonResult(
            self.baseline_nanousd + other.baseline_nanousd,
            self.rows + other.rows,
            self.left_out_nanousd + other.left_out_nanousd,
        )


_NONE: Final = (ComparisonResult(), ComparisonResult(), ComparisonResult())


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The books of one day, target, pool and origin."""

    day_us: int
    target_id: str
    pool: str
    origin: str
    served: int = 0
    attempts: int = 0
    estimated_attempts: int = 0
    unpriced_attempts: int = 0
    cost_nanousd: int = 0
    baselines: tuple[int, int, int] = (0, 0, 0)
    """In the order of `COMPARATORS`, like the rows."""
    rows: tuple[int, int, int] = (0, 0, 0)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines, added up."""

    served: int = 0
    attempts: int = 0
    estimated_attempts: int = 0
    unpriced_attempts: int = 0
    cost_nanousd: int = 0
    against: tuple[ComparisonResult, ComparisonResult, ComparisonResult] = _NONE

    def __add__(self, other: "Figures") -> "Figures":
        first, second, third = (mine + theirs for mine, theirs in zip(self.against, other.against, strict=True))
        return Figures(
            served=self.served + other.served,
            attempts=self.attempts + other.attempts,
            estimated_attempts=self.estimated_attempts + other.estimated_attempts,
            unpriced_attempts=self.unpriced_attempts + other.unpriced_attempts,
            cost_nanousd=self.cost_nanousd + other.cost_nanousd,
            against=(first, second, third),
        )


Billed = Mapping[tuple[str, int], bool]
"""Whether a pool's day has hours that its rows are billed for; a day that is not in it says nothing of that."""


def figures(lines: Iterable[Line], *, billed: Billed | None = None) -> Figures:
    """The sums of these lines. What ran on a pool is priced by the bill of its day, whatever it was booked at.

    Where a pool worked in no hour that it was up, nobody knows what it cost, so its rows are unpriced.
    """
    together: dict[tuple[int, str, str], list[Line]] = {}
    for line in lines:
        # What was posted later belongs to the requests that it corrects; a shadow call serves nobody.
        posted = "" if line.origin not in {"shadow", "idle"} else line.origin
        together.setdefault((line.day_us, line.target_id, f"{line.pool}/{posted}"), []).append(line)
    total = Figures()
    for group in together.values():
        total += _figures(group, billed or {})
    return total


def _unpriced(line: Line, billed: Billed) -> int:
    known = billed.get((line.pool, line.day_us))
    if known is None:
        return line.unpriced_attempts
    return 0 if known else line.attempts


def _figures(lines: Sequence[Line], billed: Billed) -> Figures:
    served, attempts = sum(line.served for line in lines), sum(line.attempts for line in lines)
    cost = sum(line.cost_nanousd for line in lines)

    def against(place: int) -> ComparisonResult:
        rows = sum(line.rows[place] for line in lines)
        missing = min(max(0, served - rows), attempts)
        left_out = cost * missing // attempts if missing else 0
        return ComparisonResult(sum(line.baselines[place] for line in lines), rows, max(0, left_out))

    return Figures(
        served=served,
        attempts=attempts,
        estimated_attempts=sum(line.estimated_attempts for line in lines),
        unpriced_attempts=sum(_unpriced(line, billed) for line in lines),
        cost_nanousd=cost,
        against=(against(0), against(1), against(2)),
    )


def cost_parts(lines: Iterable[Line], gateway_nanousd: int) -> dict[Part, int]:
    """Everything that was spent, told apart; the parts add up to it."""
    parts: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for line in lines:
        parts[_PART_OF.get(line.origin, "corrections")] += line.cost_nanousd
    parts["gateway"] = gateway_nanousd
    return parts


_PART_OF: Final[dict[str, Part]] = {"caller": "requests", "shadow": "shadow", "true-up": "true-up", "idle": "idle"}


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison and its verdict. Without a baseline there is no share."""

    comparator: ComparatorName
    baseline_nanousd: int
    cost_nanousd: int
    share: Decimal | None
    """To four places, rounded down: it never looks better than it is."""
    coverage: Decimal | None
    """The share of served requests that have the figure."""
    verdict: Word
    reasons: tuple[str, ...]

    @property
    def saving_nanousd(self) -> int:
        """Below zero when it would have been cheaper elsewhere."""
        return self.baseline_nanousd - self.cost_nanousd


def compare(
    found: Figures,
    extra_nanousd: int,
    target: Decimal,
    measured: Measured | None = None,
    overworked: Sequence[str] = (),
) -> tuple[Comparison, ...]:
    """All three, side by side. `extra_nanousd` is what was spent beside the books; the measured saving is the reference's.

    `overworked` are pools whose bills cannot be right.
    """
    return tuple(
        _comparison(name, found, against, extra_nanousd, target, measured if name == "reference" else None, overworked)
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
) -> Comparison:
    cost = found.cost_nanousd - against.left_out_nanousd + extra_nanousd
    share = saving_share(against.baseline_nanousd, cost)
    verdict, reasons = _believed(judge(found, against, share, target, measured), overworked)
    return Comparison(
        comparator=name,
        baseline_nanousd=against.baseline_nanousd,
        cost_nanousd=cost,
        share=None if share is None else floor(share),
        coverage=None if not found.served else floor(Fraction(against.rows, found.served)),
        verdict=verdict,
        reasons=reasons,
    )


def saving_share(baseline_nanousd: int, cost_nanousd: int) -> Fraction | None:
    """What was saved of the baseline, exactly."""
    return Fraction(baseline_nanousd - cost_nanousd, baseline_nanousd) if baseline_nanousd > 0 else None


def judge(
    found: Figures, against: ComparisonResult, share: Fraction | None, target: Decimal, measured: Measured | None = None
) -> tuple[Word, tuple[str, ...]]:
    """The verdict, and what to know about it.

    There is not enough data with fewer than 100 served requests, a figure for fewer than 90 % of them, any attempt
    without a price, or more than 20 % of attempts estimated. Else the saving decides. Where it was measured too, an
    interval that lies below the target overrules the model; one that the target lies in is told.
    """
    missing = _missing(found, against)
    if share is None or missing:
        return "not enough data", missing or ("no served request has a price to compare with",)
    word: Word = "met" if share >= Fraction(target) else "not met"
    if measured is None:
        return word, ()
    interval = f"measured with 95 % certainty: {_percent(measured.low)} to {_percent(measured.high)}"
    if measured.high < target:
        return "not met", (f"{interval}, which is below the target",)
    if measured.low < target:
        return word, (f"{interval}, so the experiment does not decide it",)
    return word, (interval,)


def _believed(judged: tuple[Word, tuple[str, ...]], overworked: Sequence[str]) -> tuple[Word, tuple[str, ...]]:
    """A bill for too few hours is too low, so what it meets may not be met. What it does not meet is not met anyhow."""
    if not overworked:
        return judged
    word, reasons = judged
    doubt = (
        f"by the measured weights {', '.join(overworked)} worked longer than it was up: "
        "the hours that it is billed for, or the weights, are wrong"
    )
    return "not enough data" if word == "met" else word, (*reasons, doubt)


def _missing(found: Figures, against: ComparisonResult) -> tuple[str, ...]:
    reasons = []
    if found.served < FEWEST_SERVED:
        reasons.append(f"{found.served} requests were served; {FEWEST_SERVED} are needed")
    if found.served and against.rows < LEAST_COVERAGE * found.served:
        covered = _percent(against.rows / found.served)
        reasons.append(
            f"{covered} of served requests have a price to compare with; {_percent(LEAST_COVERAGE)} are needed"
        )
    if found.unpriced_attempts > 0:
        reasons.append(f"{found.unpriced_attempts} attempts have no price of their own")
    if found.attempts and found.estimated_attempts > MOST_ESTIMATED * found.attempts:
        estimated = _percent(found.estimated_attempts / found.attempts)
        reasons.append(f"{estimated} of attempts are estimated; at most {_percent(MOST_ESTIMATED)} may be")
    return tuple(reasons)


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Pools of our own: what they cost, how busy they were, and what they served."""

    bill_nanousd: int = 0
    up_us: int = 0
    busy_us: int = 0
    overfull: bool = False
    """On some day tokens took longer, by the weights, than replicas were up: weights or hours are wrong."""
    served: Figures = Figures()
    """The rows of these pools, whatever they are booked at."""

    def __add__(self, other: "Fleet") -> "Fleet":
        return Fleet(
            bill_nanousd=self.bill_nanousd + other.bill_nanousd,
            up_us=self.up_us + other.up_us,
            busy_us=self.busy_us + other.busy_us,
            overfull=self.overfull or other.overfull,
            served=self.served + other.served,
        )

    @property
    def utilisation(self) -> Fraction | None:
        """The share of the time up that tokens took, by the measured weights."""
        return Fraction(self.busy_us, self.up_us) if self.up_us else None

    @property
    def overworked(self) -> bool:
        """It did more than it can have done, so its bill is not to be believed."""
        return self.busy_us > MOST_UTILISATION * self.up_us


class FleetComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet's bill beside what its tokens would have cost elsewhere."""

    comparator: ComparatorName
    cost_nanousd: int
    """The bill, less what requests without the figure paid of it."""
    baseline_nanousd: int
    cost_share: Decimal | None
    """The cost by the baseline, rounded up: 0.6 or less is a saving of 40 %."""
    coverage: Decimal | None
    needed_utilisation: Decimal | None
    """Where the target would be reached with such traffic, rounded up; above 1 it cannot be."""
    verdict: Word
    reasons: tuple[str, ...]


def compare_fleet(fleet: Fleet, target: Decimal) -> tuple[FleetComparison, ...]:
    """The verdict on our own GPUs by themselves.

    The bill is for time up, the baseline for tokens. So at the same prices and weights twice the utilisation is twice
    the baseline for the same bill, and the target is reached at utilisation x bill / (baseline x (1 - target)).
    """
    return tuple(
        _fleet_comparison(name, fleet, against, target)
        for name, against in zip(COMPARATORS, fleet.served.against, strict=True)
    )


def _fleet_comparison(
    name: ComparatorName, fleet: Fleet, against: ComparisonResult, target: Decimal
) -> FleetComparison:
    # Idle time is nobody's, so all of it stays in.
    cost, baseline = fleet.bill_nanousd - against.left_out_nanousd, against.baseline_nanousd
    judged = judge(fleet.served, against, saving_share(baseline, cost), target)
    verdict, reasons = _believed(judged, ["the fleet"] if fleet.overworked else ())
    utilisation = fleet.utilisation
    needed = None
    if utilisation is not None and baseline > 0:
        needed = utilisation * cost / (baseline * (1 - Fraction(target)))
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
    """The share of judged answers that were adequate, and where the true share lies in 95 of 100 cases."""

    adequate: int
    judged: int
    share: float
    low: float
    high: float


def quality(adequate: int, judged: int) -> Quality | None:
    """Wilson's interval: it is honest for few answers, and never leaves 0 to 1. None when nothing was judged.

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
    """To four places, rounded down."""
    return Decimal(share.numerator * _PLACES // share.denominator) / _PLACES


def ceiling(share: Fraction) -> Decimal:
    """To four places, rounded up."""
    return -floor(-share)


def _percent(share: float | Fraction) -> str:
    return f"{float(share) * 100:.1f} %"
