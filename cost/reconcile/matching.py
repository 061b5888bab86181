"""Comparison of a provider's statement with the ledger, by day, model and key. Pure.

The two sides meet by UTC day, by model and, where a map says whose key is whose, by key. Where an export is not divided
that far, it is compared with the whole: of all keys, or of all models. Nothing is left out: what is only on one side is
compared with nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import chain
from typing import Final, Literal, TypeVar, cast

import msgspec

from cost.dimensions import PostedGroup
from cost.prices import NANO_PER_USD
from cost.reconcile.statement import (
    COST_METERS,
    EXACT,
    NO_PARTS,
    NO_TOKENS,
    BadExport,
    CostLine,
    Statement,
    Tokens,
    UsageLine,
)
from cost.times import DAY_US, day_of, start_of

ALL: Final = "*"
"""Stands for every model, or every key, where the export is not divided further."""
OTHERS: Final = ""
"""Stands for the keys that no map names."""
CHARGE: Final = "charge/"
"""Prefix of the target that charges for something other than tokens are booked to."""
_MAX_CHARGE_CHARS: Final = 150
_SNAPSHOT: Final = re.compile(r"[-@](\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|latest)\Z")

_Dated = TypeVar("_Dated", UsageLine, CostLine, "OurRow")

CostMeters = tuple[int, ...]
"""One amount in nano-dollars for each of `COST_METERS`."""


class OurRow(PostedGroup, frozen=True, kw_only=True):
    """Amounts that we booked on one day for one group of ledger dimensions."""

    day_us: int
    tokens: Tokens = NO_TOKENS
    parts: tuple[int, ...] = NO_PARTS
    """Tokens of each of `PARTS`; `tokens` contains them."""
    attempts: int = 0
    unpriced_attempts: int = 0
    cost_nanousd: int = 0
    meters: CostMeters = (0,) * len(COST_METERS)
    """Cost by meter; rows from before there were meters have a cost without."""
    disputed_nanousd: int = 0
    """Amount that the provider told beyond the possible, which is in no cost here."""
    own_baselines: tuple[int, ...] = (0, 0, 0)
    """Baselines of these attempts at their own target's price, in the order of `BASELINE_COLUMNS`: they are the cost itself."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. `theirs_tokens` or `theirs_nanousd` is None where the export does not tell it."""

    day_us: int
    model: str
    key: str
    theirs_tokens: Tokens | None = None
    ours_tokens: Tokens = NO_TOKENS
    theirs_nanousd: int | None = None
    ours_nanousd: int = 0
    theirs_meters: CostMeters | None = None
    """Their dollars by meter in nano-dollars, if the export divides all of them so."""
    whole: bool = True
    """True if the export covers all of the day."""
    only: Literal["", "theirs", "ours"] = ""
    rows: tuple[OurRow, ...] = ()
    blank: OurRow
    """Group to which a difference is booked when we have no rows at all."""

    @property
    def our_models(self) -> tuple[str, ...]:
        """Our names of the model; the provider's own where we have none."""
        return tuple(sorted({row.target_id for row in self.rows})) or (self.blank.target_id,)

    @property
    def tokens_difference(self) -> Tokens:
        """Theirs less ours by meter; zeros where the export tells no tokens."""
        theirs = self.ours_tokens if self.theirs_tokens is None else self.theirs_tokens
        return cast("Tokens", tuple(a - b for a, b in zip(theirs, self.ours_tokens, strict=True)))

    @property
    def nanousd_difference(self) -> int:
        """Theirs less ours; 0 where the export tells no dollars."""
        return 0 if self.theirs_nanousd is None else self.theirs_nanousd - self.ours_nanousd

    @property
    def differs(self) -> bool:
        """True if tokens or dollars differ at all."""
        return self.nanousd_difference != 0 or any(self.tokens_difference)


class Reconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """All comparisons of one statement, by day and model, with notes for its reader."""

    provider: str
    first_day: date
    last_day: date
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    whole_days: tuple[int, ...] = ()
    """Start of each day that the files tell all of, also of those without a line."""


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """Mapping of the provider's names to ours."""

    upstream_models: Mapping[str, tuple[str, ...]]
    """Our targets, each with the provider's names for it."""
    models: tuple[tuple[str, str], ...] = ()
    """More pairs of their model and our target, given by hand."""
    keys: tuple[tuple[str, str], ...] = ()
    """Pairs of their key (or project) and ours. One of theirs may stand for many of ours."""
    organisation_id: str = "default"
    """Organisation that a difference is booked to if it belongs to nobody."""


def without_snapshot(name: str) -> str:
    """Return a model's name without the date of a snapshot at its end."""
    return _SNAPSHOT.sub("", name)


class Names:
    """Equivalence of their names and ours: connected names share one label."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._theirs: dict[str, str] = {}
        self._ours: dict[str, str] = {}
        for theirs, ours in pairs:
            label = self._theirs.setdefault(theirs, self._ours.get(ours, theirs))
            before = self._ours.setdefault(ours, label)
            if before != label:
                # This pair joins two groups.
                for side in (self._theirs, self._ours):
                    side.update({name: before for name, held in side.items() if held == label})

    def ours(self, name: str) -> str | None:
        """Return the label of a name of ours; None if it is unknown."""
        return self._ours.get(name)

    def theirs(self, name: str) -> str | None:
        """Return the label of a name of theirs; None if it is unknown."""
        return self._theirs.get(name)

    def guess(self, name: str) -> str | None:
        """Return the only label with a name that differs from this one by no more than a snapshot's date, else None."""
        bare = without_snapshot(name)
        found = {label for known, label in self._theirs.items() if without_snapshot(known) == bare}
        return found.pop() if len(found) == 1 else None

    def first_ours(self, label: str) -> str | None:
        """Return our first name of a label; None if there is none."""
        return next((name for name, held in self._ours.items() if held == label), None)


def model_names(matching: Matching, rows: Iterable[OurRow]) -> Names:
    """Return the configured names of models; a target that is only in the ledger goes by its own."""
    pairs = list(matching.models)
    pairs += [(name, target) for target, names in matching.upstream_models.items() for name in names]
    known = {target for _, target in pairs}
    booked = dict.fromkeys(row.target_id for row in rows if not row.target_id.startswith(CHARGE))
    return Names([*pairs, *((target, target) for target in booked if target not in known)])


def days_between(statement: Statement, first: date | None, last: date | None) -> list[int]:
    """Return the days that the export covers within the range. Raises BadExport when there are none."""
    told = sorted(statement.usage_days.keys() | statement.cost_days.keys())
    if not told:
        raise BadExport("the files tell about no day: neither usage nor costs were found in them")
    low = start_of(first) if first is not None else told[0]
    high = start_of(last) if last is not None else told[-1]
    days = [day for day in told if low <= day <= high]
    if not days:
        raise BadExport(f"the files tell about {day_of(told[0])} to {day_of(told[-1])}, which is not in the range")
    return days


def compare(
    statement: Statement,
    rows: Sequence[OurRow],
    matching: Matching,
    *,
    first: date | None = None,
    last: date | None = None,
) -> Reconciliation:
    """Compare statement and ledger as finely as the files allow. `rows` are ours of those days and this provider.

    Raises BadExport.
    """
    days = days_between(statement, first, last)
    names = model_names(matching, rows)
    keys = Names(matching.keys)
    if matching.keys and not any(each.key for each in chain[UsageLine | CostLine](statement.usage, statement.costs)):
        raise BadExport("no result names a key or project, so --map finds nothing; export with group_by=api_key_id")
    notes = [*statement.notes, *_gap_notes(days, first, last)]
    context = _Context(statement=statement, names=names, keys=keys, matching=matching)
    models = {each.model for each in statement.usage}
    for name in (*models, *(each.model for each in statement.costs), *matching.upstream_models):
        if name.startswith(CHARGE):
            raise BadExport(f"the model {name!r}: names that begin with {CHARGE} are kept for other charges")
    usage = _by_day(statement.usage)
    costs = _by_day([_as_model_cost(each, names, models) for each in statement.costs])
    ours = _by_day(rows)
    lines: list[Line] = []
    for day in days:
        lines += _Day(context, day, usage.get(day, []), costs.get(day, []), ours.get(day, [])).lines()
    notes += [
        f"{theirs} is taken for {label}: no configured model has this name" for theirs, label in context.guesses.items()
    ]
    notes += _notes_on(lines)
    return Reconciliation(
        provider=statement.provider,
        first_day=day_of(days[0]),
        last_day=day_of(days[-1]),
        lines=tuple(lines),
        notes=tuple(notes),
        whole_days=tuple(day for day in days if _is_whole(statement, day)),
    )


def _is_whole(statement: Statement, day_us: int) -> bool:
    told = [days[day_us] for days in (statement.usage_days, statement.cost_days) if day_us in days]
    return min(told, default=0) >= DAY_US


def nanousd_of(amount_usd: Decimal) -> int:
    """Convert dollars to nano-dollars, rounded half to even; apply it once, at the end of a sum."""
    return int(EXACT.multiply(amount_usd, Decimal(NANO_PER_USD)).to_integral_value(ROUND_HALF_EVEN))


class _Context(msgspec.Struct, kw_only=True):
    """State shared by all days; `guesses` collects model names that were matched by `Names.guess`."""

    statement: Statement
    names: Names
    keys: Names
    matching: Matching
    guesses: dict[str, str] = {}


class _Day:
    """Both sides of one day."""

    def __init__(
        self,
        context: _Context,
        day_us: int,
        usage: Sequence[UsageLine],
        costs: Sequence[CostLine],
        rows: Sequence[OurRow],
    ) -> None:
        self._statement = context.statement
        self._names = context.names
        self._keys = context.keys
        self._matching = context.matching
        self._guesses = context.guesses
        self._day_us = day_us
        # Providers give empty results for quiet days; they must not count as undivided.
        self._usage = [each for each in usage if any(each.tokens)]
        self._costs = [each for each in costs if each.amount_usd and not each.charge]
        self._charges = [each for each in costs if each.amount_usd and each.charge]
        self._rows = [row for row in rows if not row.target_id.startswith(CHARGE)]
        self._charge_rows = [row for row in rows if row.target_id.startswith(CHARGE)]

    def lines(self) -> list[Line]:
        tokens, dollars, charges = self._tokens(), self._dollars(), self._charge_lines()
        merged = [
            _merged(tokens.get(scope), dollars.get(scope))
            for scope in sorted(tokens.keys() | dollars.keys(), key=lambda scope: (scope[0] == ALL, scope))
        ]
        found = (line for line in (*merged, *charges) if line is not None)
        return [line for line in found if line.rows or line.differs]

    def _tokens(self) -> dict[tuple[str, str], Line]:
        """Compare tokens by model and key, as far as every result of the day names them."""
        covered = self._statement.usage_days.get(self._day_us, 0)
        if not covered:
            return {}
        by_model, by_key = _divided(self._usage, self._keyed)
        theirs: dict[tuple[str, str], list[UsageLine]] = {}
        for line in self._usage:
            theirs.setdefault(self._scope(line, by_model=by_model, by_key=by_key), []).append(line)
        ours = self._grouped(self._rows, by_model=by_model, by_key=by_key)
        return {
            scope: Line(
                day_us=self._day_us,
                model=scope[0],
                key=scope[1],
                theirs_tokens=_sum_tokens(line.tokens for line in theirs.get(scope, ())),
                ours_tokens=_sum_tokens(row.tokens for row in ours.get(scope, ())),
                whole=covered >= DAY_US,
                only=_only_side(theirs.get(scope), ours.get(scope)),
                rows=tuple(ours.get(scope, ())),
                blank=self._blank_row(scope),
            )
            for scope in theirs.keys() | ours.keys()
        }

    def _dollars(self) -> dict[tuple[str, str], Line]:
        covered = self._statement.cost_days.get(self._day_us, 0)
        if not covered:
            return {}
        by_model, by_key = _divided(self._costs, self._keyed)
        theirs: dict[tuple[str, str], list[CostLine]] = {}
        for line in self._costs:
            theirs.setdefault(self._scope(line, by_model=by_model, by_key=by_key), []).append(line)
        # A day given as one undivided amount includes other charges.
        undivided = not by_model and not self._charges
        rows = [*self._rows, *self._charge_rows] if undivided else self._rows
        ours = self._grouped(rows, by_model=by_model, by_key=by_key)
        return {
            scope: self._dollar_line(scope, theirs.get(scope, []), ours.get(scope, []), whole=covered >= DAY_US)
            for scope in theirs.keys() | ours.keys()
        }

    def _charge_lines(self) -> list[Line]:
        covered = self._statement.cost_days.get(self._day_us, 0)
        undivided = not _divided(self._costs, self._keyed)[0] and not self._charges
        if not covered or undivided:
            return []
        theirs: dict[str, list[CostLine]] = {}
        for line in self._charges:
            theirs.setdefault(CHARGE + line.charge[:_MAX_CHARGE_CHARS], []).append(line)
        ours: dict[str, list[OurRow]] = {}
        for row in self._charge_rows:
            ours.setdefault(row.target_id, []).append(row)
        return [
            self._dollar_line((name, ALL), theirs.get(name, []), ours.get(name, []), whole=covered >= DAY_US)
            for name in sorted(theirs.keys() | ours.keys())
        ]

    def _dollar_line(
        self, scope: tuple[str, str], theirs: Sequence[CostLine], ours: Sequence[OurRow], *, whole: bool
    ) -> Line:
        meters = _by_meter(theirs)
        total = nanousd_of(_sum_dollars(theirs))
        return Line(
            day_us=self._day_us,
            model=scope[0],
            key=scope[1],
            theirs_nanousd=total,
            ours_nanousd=sum(row.cost_nanousd for row in ours),
            theirs_meters=meters,
            whole=whole,
            only=_only_side(theirs, ours),
            rows=tuple(ours),
            blank=self._blank_row(scope),
        )

    @property
    def _keyed(self) -> bool:
        return bool(self._matching.keys)

    def _scope(self, line: UsageLine | CostLine, *, by_model: bool, by_key: bool) -> tuple[str, str]:
        model = self._label(line.model) if by_model else ALL
        return model, (self._keys.theirs(line.key) or OTHERS) if by_key else ALL

    def _grouped(self, rows: Iterable[OurRow], *, by_model: bool, by_key: bool) -> dict[tuple[str, str], list[OurRow]]:
        groups: dict[tuple[str, str], list[OurRow]] = {}
        for row in rows:
            model = (self._names.ours(row.target_id) or row.target_id) if by_model else ALL
            key = (self._keys.ours(row.key_id) or OTHERS) if by_key else ALL
            groups.setdefault((model, key), []).append(row)
        return groups

    def _label(self, model: str) -> str:
        found = self._names.theirs(model)
        if found is None:
            found = self._names.guess(model)
            if found is not None:
                self._guesses[model] = found
        return found or model

    def _blank_row(self, scope: tuple[str, str]) -> OurRow:
        """Return an empty row of nobody, for charges that nothing of ours explains."""
        model, key = scope
        provider = self._statement.provider
        return OurRow(
            day_us=self._day_us,
            organisation_id=self._matching.organisation_id,
            key_id=self._keys.first_ours(key) or "",
            target_id=provider if model == ALL else self._names.first_ours(model) or model,
            provider=provider,
            tier="interactive",
        )


def _as_model_cost(line: CostLine, names: Names, models: set[str]) -> CostLine:
    """Turn a line item that is just a model's name into that model's tokens; it is no other charge."""
    if line.charge and (line.charge in models or names.theirs(line.charge) is not None):
        return msgspec.structs.replace(line, charge="", model=line.charge)
    return line


def _by_day(lines: Iterable[_Dated]) -> dict[int, list[_Dated]]:
    days: dict[int, list[_Dated]] = {}
    for line in lines:
        days.setdefault(line.day_us, []).append(line)
    return days


def _divided(lines: Sequence[UsageLine | CostLine], keyed: bool) -> tuple[bool, bool]:
    """Return whether all of these results name their model, and whether all name their key."""
    return all(line.model for line in lines), keyed and all(line.key for line in lines)


def _merged(tokens: Line | None, dollars: Line | None) -> Line | None:
    if tokens is None or dollars is None:
        return tokens or dollars
    return msgspec.structs.replace(
        tokens,
        theirs_nanousd=dollars.theirs_nanousd,
        ours_nanousd=dollars.ours_nanousd,
        theirs_meters=dollars.theirs_meters,
        whole=tokens.whole and dollars.whole,
        only=tokens.only if tokens.only == dollars.only else "",
        # An undivided day's dollars include rows of other charges; its tokens have none there.
        rows=max(tokens.rows, dollars.rows, key=len),
    )


def _sum_tokens(counts: Iterable[Tokens]) -> Tokens:
    return cast("Tokens", tuple(map(sum, zip(*counts, strict=True))) or NO_TOKENS)


def _sum_dollars(lines: Iterable[CostLine]) -> Decimal:
    total = Decimal(0)
    for line in lines:
        total = EXACT.add(total, line.amount_usd)
    return total


def _by_meter(lines: Sequence[CostLine]) -> CostMeters | None:
    """Return their cost by meter, or None if some of it is not divided.

    The running total is rounded, so the parts add up to the whole.
    """
    if not all(line.meter for line in lines):
        return None
    running, rounded, parts = Decimal(0), 0, []
    for meter in COST_METERS:
        running = EXACT.add(running, _sum_dollars(line for line in lines if line.meter == meter))
        before, rounded = rounded, nanousd_of(running)
        parts.append(rounded - before)
    return cast("CostMeters", tuple(parts))


def _only_side(theirs: Sequence[object] | None, ours: Sequence[object] | None) -> Literal["", "theirs", "ours"]:
    if theirs and not ours:
        return "theirs"
    return "ours" if ours and not theirs else ""


def _gap_notes(days: Sequence[int], first: date | None, last: date | None) -> Iterator[str]:
    low = start_of(first) if first is not None else days[0]
    high = start_of(last) if last is not None else days[-1]
    missing = (high - low) // DAY_US + 1 - len(days)
    if missing:
        yield f"{missing} of the days from {day_of(low)} to {day_of(high)} are not in the files and were not compared"


def _notes_on(lines: Iterable[Line]) -> list[str]:
    notes: dict[str, None] = {}
    for line in lines:
        where = f"{day_of(line.day_us)} {line.model}"
        if not line.whole:
            notes[f"{day_of(line.day_us)}: the files do not tell about all of this day"] = None
        unpriced = sum(row.unpriced_attempts for row in line.rows)
        if unpriced and line.theirs_nanousd is not None:
            notes[f"{where}: {unpriced} of our attempts have no price, so their cost is not in ours"] = None
    return list(notes)
