"""Monthly cost of prompt prefixes that change. Pure; dollars are exact.

    dollars a month = broken tokens * dollars a token * 30 days ÷ days seen

`broken tokens` are those that came after the varying part and were the same again: they were computed anew, and would
be found in the cache if the varying part stood behind them. Only the system prompt and the tools are counted; the
conversation behind them is lost with them, so the true loss is larger. `days seen` go from the first day on which
anything was counted in the range (or its start, if that is later) to now, one at least.

`dollars a token` is, for a self-hosted target, the replica's time that a cached token saves at what that time costs:

    (seconds_per_million.input - seconds_per_million.cached_input) ÷ 1,000,000
        * gpus_per_replica * usd_per_gpu_hour * overhead ÷ 3,600

and for any other the list price of input less that of cached input. An unknown price is None, not 0.
"""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import msgspec

from cost.fleet.bill import rate_of, weights_ps
from cost.fleet.pool_config import PoolSection
from cost.meters import METER_NAMES
from cost.price_book.book import PriceBook
from cost.prices import NANO_PER_USD
from cost.times import DAY_US, iso
from selfhosted.prefixes.store import PrefixUsage
from selfhosted.prefixes.tracker import VARIOUS

MONTH_DAYS: Final = 30
_PS_PER_US: Final = 1_000_000
_MILLION: Final = 1_000_000
_CENT: Final = Decimal("0.01")
_SHARE: Final = Decimal("0.0001")

Rates = Callable[[str], Fraction | None]
"""Function from a target id to the nano-dollars that a token costs more when it misses the cache; None: unknown."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a team begins its prompts to a target, with its cost."""

    organisation_id: str
    team_id: str
    target_id: str
    skeleton: str
    """Hex name of the skeleton; empty for the sum of all that has no row of its own."""
    requests: int
    broken: int
    share_broken: Decimal
    first_break_tokens: int | None
    """Number of leading tokens that stay in the cache, at least; None where nothing breaks."""
    kinds: tuple[str, ...]
    tokens_a_month: int
    usd_a_month: Decimal | None
    advice: str


class TeamSum(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of one team's findings."""

    team_id: str
    requests: int
    broken: int
    tokens_a_month: int
    usd_a_month: Decimal
    """Sum over the findings with a known price."""
    unpriced: int
    """Number of findings without a known price."""


class PrefixReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report for a range of days; teams and findings are sorted by loss, largest first."""

    start_us: int
    end_us: int
    days: Decimal
    teams: tuple[TeamSum, ...]
    findings: tuple[Finding, ...]


def rates_of(pools: Sequence[PoolSection], book: PriceBook, at_us: int) -> Rates:
    """Return the rates from the pools' costs and the price book at a moment, by the module's formula."""
    own = {target: pool for pool in pools for target in pool.targets}

    def rate(target_id: str) -> Fraction | None:
        pool = own.get(target_id)
        if pool is not None:
            weights = dict(zip(METER_NAMES, weights_ps(pool), strict=True))
            return rate_of(pool) / _PS_PER_US * max(0, weights["input"] - weights["cached_input"])
        price = book.at(target_id, at_us)
        if price is None:
            return None
        return Fraction(max(0, price.input_nanousd - price.cached_input_nanousd), _MILLION)

    return rate


def stability(habits: Iterable[PrefixUsage], rates: Rates, *, start_us: int, end_us: int, now_us: int) -> PrefixReport:
    """Build the report on the days from `start_us` to before `end_us`."""
    known = list(habits)
    first_us = max(start_us, min((each.first_day_us for each in known), default=start_us))
    seen_us = max(DAY_US, min(now_us, end_us) - first_us)
    found = [_finding(each, rates(each.target_id), Fraction(MONTH_DAYS * DAY_US, seen_us)) for each in known]
    found.sort(key=_by_loss)
    teams: dict[str, list[Finding]] = {}
    for each in found:
        teams.setdefault(each.team_id, []).append(each)
    sums = [_team_sum(team_id, mine) for team_id, mine in teams.items()]
    sums.sort(key=lambda team: (-team.usd_a_month, -team.tokens_a_month, team.team_id))
    return PrefixReport(
        start_us=start_us,
        end_us=end_us,
        days=(Decimal(seen_us) / DAY_US).quantize(_CENT),
        teams=tuple(sums),
        findings=tuple(found),
    )


def prefixes_as_json(report: PrefixReport) -> dict[str, Any]:
    """Return the report as a JSON object."""
    return {
        "object": "prefix_stability",
        "start": iso(report.start_us)[:10],
        "end": iso(report.end_us)[:10],
        "days_seen": report.days,
        "teams": [msgspec.structs.asdict(each) for each in report.teams],
        "findings": [msgspec.structs.asdict(each) | {"skeleton": each.skeleton or None} for each in report.findings],
    }


def advice_for(kinds: Iterable[str]) -> str:
    """Return the advice to a team, from the kinds of its varying parts; empty when there are none."""
    given = set(kinds)
    what = [
        name
        for name, members in (
            ("the date", {"date"}),
            ("the time", {"time", "clock"}),
            ("the session's or request's id", {"uuid", "hex", "id"}),
            ("the number", {"number"}),
            ("what differs from request to request", {"other"}),
        )
        if given & members
    ]
    if not what:
        return ""
    named = what[0] if len(what) == 1 else f"{', '.join(what[:-1])} and {what[-1]}"
    return f"move {named} to the end of the system prompt or into the user message"


def _finding(habit: PrefixUsage, rate: Fraction | None, months: Fraction) -> Finding:
    tokens = habit.broken_tokens * months
    usd = None if rate is None else _usd(tokens * rate)
    if not habit.broken_tokens:
        usd = Decimal(0)
    return Finding(
        organisation_id=habit.organisation_id,
        team_id=habit.team_id,
        target_id=habit.target_id,
        skeleton=habit.skeleton,
        requests=habit.requests,
        broken=habit.broken,
        share_broken=(Decimal(habit.broken) / max(1, habit.requests)).quantize(_SHARE),
        first_break_tokens=habit.first_break_tokens if habit.broken else None,
        kinds=habit.kinds,
        tokens_a_month=round(tokens),
        usd_a_month=usd,
        advice=advice_for(habit.kinds) if habit.broken and habit.skeleton != VARIOUS else "",
    )


def _team_sum(team_id: str, findings: Sequence[Finding]) -> TeamSum:
    return TeamSum(
        team_id=team_id,
        requests=sum(each.requests for each in findings),
        broken=sum(each.broken for each in findings),
        tokens_a_month=sum(each.tokens_a_month for each in findings),
        usd_a_month=sum((each.usd_a_month for each in findings if each.usd_a_month is not None), Decimal(0)),
        unpriced=sum(1 for each in findings if each.usd_a_month is None),
    )


def _by_loss(each: Finding) -> tuple[Decimal, int, int, str, str, str]:
    usd = Decimal(0) if each.usd_a_month is None else each.usd_a_month
    return -usd, -each.tokens_a_month, -each.requests, each.team_id, each.target_id, each.skeleton


def _usd(nanousd: Fraction) -> Decimal:
    """Convert nano-dollars to dollars, rounded half up to a nano-dollar."""
    whole = (2 * nanousd.numerator + nanousd.denominator) // (2 * nanousd.denominator)
    return Decimal(whole) / NANO_PER_USD
