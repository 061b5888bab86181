"""Checklist of a month's close: steps, each with a state and a sentence. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final, Literal

import msgspec

from cost.close.checks import MonthCheck
from cost.close.month import Month
from cost.prices import usd
from cost.reconcile.coverage import Compared, Outcome
from cost.reports.period import PeriodLine, SpendSum, spent
from cost.shown import percent, rounded_money
from cost.times import HOUR_US, day_of

State = Literal["done", "look", "open", "waiting"]
"""`open` needs somebody to settle it; `look` needs a person's decision; `waiting` settles itself; `done` is settled."""
Kind = Literal["over", "books", "true-up", "unpriced", "estimated", "reconciliation", "idle"]

OURS: Final = "self-hosted"
"""Provider name of attempts on our own GPUs, also of those without a configured pool."""
MOST_ESTIMATED: Final = Fraction(1, 100)
"""Largest share of estimated attempts that needs no look; the savings report itself tolerates more."""
_MOST_LISTED: Final = 5


class ProviderMonth(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's spending in the month, to compare with its invoice."""

    provider: str
    spent: SpendSum

    @property
    def booked_nanousd(self) -> int:
        """Spending as requests were booked, shadow calls included."""
        return self.spent.part("requests", "shadow")

    @property
    def posted_nanousd(self) -> int:
        """Sum of corrections and reconciliations posted for the month."""
        return self.spent.part("corrections", "reconciliations")


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A person's word on a step. A tick holds while the step's text stays the same."""

    ticked: bool
    said: str
    comment: str
    by: str
    at_us: int


class MonthFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of the checklist."""

    month: Month
    now_us: int
    check: MonthCheck
    lines: tuple[PeriodLine, ...]
    pools: tuple[str, ...] = ()
    """Names of the pools that the organisation pays for."""
    provisional_days: tuple[int, ...] = ()
    unpriced_attempts: int = 0
    """Unpriced attempts as the savings report counts them: attempts on a pool are priced by its bill."""
    invoiced: tuple[PeriodLine, ...] = ()
    """The lines of the same month in UTC, which providers' invoices are of."""
    used_days: Mapping[str, tuple[int, ...]] = {}
    """UTC days of it on which something was booked to a provider, by its name."""
    compared: Compared = {}
    marks: Mapping[str, Mark] = {}
    """People's words on steps, by the step's key."""

    @property
    def spent(self) -> SpendSum:
        """Sums over the whole month."""
        return spent(self.lines)

    @property
    def gpu_bill_nanousd(self) -> int:
        """Bill of the pools that the organisation pays for, as posted; the idle row is a part of it."""
        paid = {line.pool for line in self.lines if line.origin == "idle" and line.pool}
        return sum(line.cost_nanousd for line in self.lines if line.pool in paid)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the checklist: its state, a sentence about it, and what to do."""

    kind: Kind
    title: str
    state: State
    said: str
    todo: str = ""
    command: str = ""
    """Command for the operator of the gateway to run; empty if there is none."""
    of: str = ""
    """Provider that the step is about; empty where it is about none."""
    can_be_ticked: bool = False
    """True if it is for a person to decide: a tick then makes it done."""
    mark: Mark | None = None
    is_outdated: bool = False
    """True if it was ticked, and says something else now."""

    @property
    def key(self) -> str:
        """Name of the step within its month."""
        return f"{self.kind}/{self.of}" if self.of else self.kind


def providers_of(lines: Sequence[PeriodLine]) -> tuple[ProviderMonth, ...]:
    """Return the providers that send invoices, highest cost first; our own GPUs are on no invoice."""
    by_provider: dict[str, list[PeriodLine]] = {}
    for line in lines:
        if not line.pool and line.provider != OURS and line.origin != "idle":
            by_provider.setdefault(line.provider, []).append(line)
    found = [ProviderMonth(provider=name, spent=spent(mine)) for name, mine in by_provider.items()]
    return tuple(sorted(found, key=lambda each: (-each.spent.cost_nanousd, each.provider)))


def steps(facts: MonthFacts) -> tuple[Step, ...]:
    """Return the steps in the order in which to work through them, each with people's marks on it."""
    return tuple(_marked(step, facts.marks.get(step.key)) for step in _steps(facts))


def _marked(step: Step, mark: Mark | None) -> Step:
    can_be_ticked = step.state == "look"
    if mark is None or not (can_be_ticked and mark.ticked):
        return msgspec.structs.replace(step, mark=mark, can_be_ticked=can_be_ticked)
    if mark.said != step.said:
        # Somebody accepted other figures than these.
        return msgspec.structs.replace(step, mark=mark, can_be_ticked=True, is_outdated=True)
    return msgspec.structs.replace(step, mark=mark, can_be_ticked=True, state="done")


def is_ready(found: Sequence[Step]) -> bool:
    """Return True if every step is done, by itself or by a person's tick: then the month can be signed off."""
    return all(step.state == "done" for step in found)


def _steps(facts: MonthFacts) -> Iterator[Step]:
    yield _over_step(facts)
    if facts.pools:
        yield _true_up_step(facts)
    yield _unpriced_step(facts)
    yield _estimated_step(facts)
    yield from _reconciliation_steps(facts)
    if facts.pools:
        yield _idle_step(facts)
    yield _books_step(facts)


def _over_step(facts: MonthFacts) -> Step:
    title, zone = "The month is over", facts.month.days.time_zone
    if facts.month.is_over(facts.now_us):
        return Step(kind="over", title=title, state="done", said=f"It ended with {facts.month.last_day} ({zone}).")
    days = -(-(facts.month.end_us - facts.now_us) // (24 * HOUR_US))
    return Step(
        kind="over",
        title=title,
        state="waiting",
        said=f"It runs until {facts.month.last_day} ({zone}), {_count_text(days, 'more day')}. All figures are so far.",
    )


def _true_up_step(facts: MonthFacts) -> Step:
    title = "The bills of our own GPUs are posted"
    today = facts.now_us - facts.now_us % (24 * HOUR_US)
    missing = [day for day in facts.provisional_days if day != today]
    if not facts.provisional_days:
        return Step(kind="true-up", title=title, state="done", said="Every day adds up to its bill.")
    if not missing:
        return Step(
            kind="true-up",
            title=title,
            state="waiting",
            said="All days except today, whose bill is posted at 00:15 UTC.",
        )
    shown = _days_text(missing)
    return Step(
        kind="true-up",
        title=title,
        state="open",
        said=f"{_count_text(len(missing), 'day does', 'days do')} not add up to the bill yet: {shown}.",
        todo="The last seven days are posted by themselves each night; an older one by:",
        command="weighbridge pools true-up POOL --day DAY",
    )


def _unpriced_step(facts: MonthFacts) -> Step:
    title = "Everything has a price"
    if not facts.unpriced_attempts:
        return Step(kind="unpriced", title=title, state="done", said="No attempt was booked without a price.")
    targets = sorted({line.target_id for line in facts.lines if line.unpriced_attempts})
    where = f": {_list_text(targets)}" if targets else ""
    return Step(
        kind="unpriced",
        title=title,
        state="open",
        said=f"{_count_text(facts.unpriced_attempts, 'attempt is', 'attempts are')} in no total{where}.",
        todo="Enter the price, then book it for the days that are past by:",
        command="weighbridge prices correct TARGET --version unpriced --from DAY --to DAY",
    )


def _estimated_step(facts: MonthFacts) -> Step:
    title = "Usage was counted by the provider"
    total = facts.spent
    if not total.estimated_attempts:
        return Step(kind="estimated", title=title, state="done", said="No attempt is an estimate of ours.")
    share = Fraction(total.estimated_attempts, total.attempts) if total.attempts else Fraction(0)
    said = (
        f"{total.estimated_attempts:,} of {_count_text(total.attempts, 'attempt')} ({percent(share, 2)}) "
        f"{'is' if total.estimated_attempts == 1 else 'are'} counted by us, because the provider reported no usage."
    )
    if share <= MOST_ESTIMATED:
        return Step(kind="estimated", title=title, state="done", said=said)
    return Step(
        kind="estimated",
        title=title,
        state="look",
        said=said,
        todo="A reconciliation with the provider's own export puts right what an estimate missed.",
    )


def _reconciliation_steps(facts: MonthFacts) -> Iterator[Step]:
    for each in providers_of(facts.invoiced):
        used = facts.used_days.get(each.provider, ())
        if used:
            yield _reconciliation_step(each.provider, used, facts.compared.get(each.provider.lower(), {}))


def _reconciliation_step(provider: str, used: Sequence[int], compared: Mapping[int, Outcome]) -> Step:
    """Return the step; it is done when each day with bookings was compared, and agrees or had its difference posted."""
    step = Step(
        kind="reconciliation",
        of=provider or "unnamed",
        title=f"Compared with the books of {provider or 'an unnamed provider'}",
        state="look",
        said="",
    )
    missing = [day for day in used if day not in compared]
    differs = [day for day in used if compared.get(day) == "differs"]
    posted = sum(compared.get(day) == "posted" for day in used)
    days = f"{_count_text(len(used), 'day')} with requests"
    if differs:
        return msgspec.structs.replace(
            step,
            said=f"{len(differs)} of {days} {'differs' if len(differs) == 1 else 'differ'}: {_days_text(differs)}.",
            todo="Have the difference posted, or say why it stays and tick this.",
            command=f"weighbridge reconcile {provider} FILE… --post",
        )
    if missing:
        return msgspec.structs.replace(
            step,
            said=f"{len(used) - len(missing)} of {days} were compared; not: {_days_text(missing)}.",
            todo="Compare its export of those days; or compare its invoice with the figure below, and tick this.",
        )
    agreed = f"all {days} were compared, and {_count_text(posted, 'difference was', 'differences were')} posted"
    return msgspec.structs.replace(step, state="done", said=f"{agreed[:1].upper()}{agreed[1:]}.")


def _days_text(days: Sequence[int]) -> str:
    return _list_text([str(day_of(day)) for day in days])


def _idle_step(facts: MonthFacts) -> Step:
    idle = facts.spent.part("idle")
    title = "Idle GPUs have an owner"
    if idle <= 0:
        return Step(kind="idle", title=title, state="done", said="Every GPU hour was used by a team.")
    # "The bill" is everything, as on Showback; the GPUs' own is a part of it, and is named.
    of_all, of_gpus = _share_text(idle, facts.spent.cost_nanousd), _share_text(idle, facts.gpu_bill_nanousd)
    told = f"{of_all} of the bill and {of_gpus} of the GPUs' part of it"
    return Step(
        kind="idle",
        title=title,
        state="look",
        said=f"{rounded_money(usd(idle))}, {told}, was used by no team and is listed in a row of its own.",
        todo="Decide who carries it; the statement has it apart so that you can.",
    )


def _books_step(facts: MonthFacts) -> Step:
    title = "The books add up"
    known = facts.check
    if known.state == "waiting":
        return Step(kind="books", title=title, state="waiting", said="A check is asked for and starts within a minute.")
    if known.state == "running":
        return Step(kind="books", title=title, state="waiting", said="The ledger is being added up again, day by day.")
    if known.state == "never":
        return Step(
            kind="books",
            title=title,
            state="open",
            said="This month's figures have not been checked against the ledger yet.",
            todo="Check it now, or wait: in the week after a month it is checked by itself, from two hours after the month's end.",
        )
    if known.differences:
        return Step(
            kind="books",
            title=title,
            state="open",
            said=f"{_count_text(known.differences, 'figure is', 'figures are')} not what the ledger says.",
            todo="Whoever runs the gateway lists them, and then writes those days anew by:",
            command=f"weighbridge ledger rebuild --from {day_of(facts.month.start_us)} --to {day_of(facts.month.end_us - 1)}",
        )
    if known.done_us < facts.month.end_us:
        return Step(
            kind="books",
            title=title,
            state="waiting",
            said="Every figure was what the ledger says when it was checked, before the month's end.",
            todo="Check it again once the month is over.",
        )
    return Step(
        kind="books",
        title=title,
        state="done",
        said="Every figure of every team is what the ledger says, to the nano-dollar.",
    )


def _count_text(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _share_text(part_nanousd: int, whole_nanousd: int) -> str:
    return percent(Fraction(part_nanousd, whole_nanousd)) if whole_nanousd > 0 else "an unknown part"


def _list_text(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_LISTED]) + (" and more" if len(names) > _MOST_LISTED else "")
