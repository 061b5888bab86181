"""Reconciliation report: table rows, JSON values, and the tolerance within which it agrees. Pure."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from cost.amounts import BadAmount, amount_in
from cost.prices import usd
from cost.reconcile.matching import ALL, Line, OurRow, Reconciliation, nanousd_of
from cost.reconcile.statement import TOKEN_METERS, Tokens
from cost.times import day_of

HEADINGS: Final = ("day", "model", "key", "meter", "theirs", "ours", "difference", "")
RIGHT: Final = (4, 5, 6)
COST: Final = "cost (USD)"
TOTAL: Final = "total"
_FEWEST_PLACES: Final = 2
_MOST_SHARE: Final = Decimal(100)


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """Difference allowed on one line. Dollars allow no token; a share allows it of both."""

    nanousd: int = 0
    share: Decimal = Decimal(0)

    def forgives(self, line: Line) -> bool:
        """Return True if no difference of the line is larger than allowed."""
        if abs(line.nanousd_difference) > max(Decimal(self.nanousd), self._allowed(line.theirs_nanousd or 0)):
            return False
        theirs = line.theirs_tokens or line.ours_tokens
        return all(
            abs(difference) <= self._allowed(billed)
            for difference, billed in zip(line.tokens_difference, theirs, strict=True)
        )

    def _allowed(self, billed: int) -> Decimal:
        return self.share * abs(billed)


def tolerance_of(text: str) -> Tolerance:
    """Parse a tolerance: `0.01` is a cent on each line, `0.5%` that share of their figure. Raises ValueError."""
    is_share = text.endswith("%")
    try:
        number = amount_in(text.removesuffix("%"))
    except BadAmount as error:
        raise ValueError(
            f"{text[:40]!r} is no tolerance, which is dollars such as 0.01 or a share such as 0.5%: {error}"
        ) from error
    if number < 0 or (is_share and number > _MOST_SHARE) or number > 10**9:
        raise ValueError(f"{text[:40]!r} is no tolerance: it must be finite, not negative, and at most 100 %")
    return Tolerance(share=number / 100) if is_share else Tolerance(nanousd=nanousd_of(number))


def differing(reconciliation: Reconciliation, tolerance: Tolerance) -> list[Line]:
    """Return the lines that differ by more than the tolerance."""
    return [line for line in reconciliation.lines if not tolerance.forgives(line)]


def table_rows(reconciliation: Reconciliation) -> list[list[str]]:
    """Return a row for each meter of each line that either side has something of, and the totals."""
    figures = [each for line in (*reconciliation.lines, _total(reconciliation)) for each in _figures(line)]
    places = max((_places(amount) for each in figures if each.meter == COST for amount in each.amounts), default=2)
    return [each.cells(places) for each in figures]


def reconciliation_as_json(reconciliation: Reconciliation, tolerance: Tolerance) -> dict[str, Any]:
    """Return JSON-ready values: tokens as numbers, dollars as exact decimal texts."""
    return {
        "provider": reconciliation.provider,
        "first_day": reconciliation.first_day.isoformat(),
        "last_day": reconciliation.last_day.isoformat(),
        "agrees": not differing(reconciliation, tolerance),
        "lines": [_line_as_json(line, tolerance) for line in reconciliation.lines],
        "total": _line_as_json(_total(reconciliation), None),
        "notes": list(reconciliation.notes),
    }


class _Figure(msgspec.Struct, frozen=True, kw_only=True):
    line: Line
    meter: str
    theirs: int | None
    ours: int

    @property
    def amounts(self) -> tuple[int, ...]:
        return (self.ours,) if self.theirs is None else (self.theirs, self.ours)

    def cells(self, places: int) -> list[str]:
        day = TOTAL if self.line.model == TOTAL else day_of(self.line.day_us).isoformat()
        names = [day, "" if self.line.model == TOTAL else model_words(self.line), _key(self.line), self.meter]
        if self.theirs is None:
            return [*names, "-", self._format(self.ours, places), "-", ""]
        difference = self.theirs - self.ours
        sign = "+" if difference > 0 else ""
        shown = [self._format(each, places) for each in (self.theirs, self.ours, difference)]
        return [*names, *shown[:2], sign + shown[2], self._note()]

    def _note(self) -> str:
        notes = [f"only {self.line.only}"] if self.line.only else []
        if self.meter == COST and (disputed := disputed_of(self.line)):
            notes.append(f"told beyond the possible: {usd(disputed):,.2f}")
        return "; ".join(notes)

    def _format(self, amount: int, places: int) -> str:
        return f"{usd(amount):,.{places}f}" if self.meter == COST else f"{amount:,}"


def model_words(line: Line) -> str:
    """Return the line's model by our name, and the provider's in brackets where it is another."""
    if line.model == ALL:
        return "(all models)"
    ours = ", ".join(line.our_models)
    return ours if ours == line.model else f"{ours} ({line.model})"


def disputed_of(line: Line) -> int:
    """Return the nano-dollars that the provider told beyond the possible, and that we did not book."""
    return sum(row.disputed_nanousd for row in line.rows)


def _key(line: Line) -> str:
    if line.model == TOTAL or line.key == ALL:
        return ""
    return line.key or "(other keys)"


def _figures(line: Line) -> list[_Figure]:
    made = []
    for place, meter in enumerate(TOKEN_METERS):
        theirs = None if line.theirs_tokens is None else line.theirs_tokens[place]
        ours = line.ours_tokens[place]
        if line.theirs_tokens is not None and (theirs or ours):
            made.append(_Figure(line=line, meter=meter, theirs=theirs, ours=ours))
    if line.theirs_nanousd is not None:
        made.append(_Figure(line=line, meter=COST, theirs=line.theirs_nanousd, ours=line.ours_nanousd))
    return made


def _total(reconciliation: Reconciliation) -> Line:
    """Sum the lines: tokens where the files tell tokens, dollars where they tell dollars."""
    with_tokens = [line for line in reconciliation.lines if line.theirs_tokens is not None]
    with_dollars = [line for line in reconciliation.lines if line.theirs_nanousd is not None]
    nobody = OurRow(day_us=0)
    theirs = [line.theirs_tokens for line in with_tokens if line.theirs_tokens is not None]
    return Line(
        day_us=0,
        model=TOTAL,
        key=ALL,
        theirs_tokens=_sum_tokens(theirs) if with_tokens else None,
        ours_tokens=_sum_tokens([line.ours_tokens for line in with_tokens]),
        theirs_nanousd=sum(line.theirs_nanousd or 0 for line in with_dollars) if with_dollars else None,
        ours_nanousd=sum(line.ours_nanousd for line in with_dollars),
        blank=nobody,
    )


def _sum_tokens(rows: Sequence[Tokens]) -> Tokens:
    first, second, third, fourth, fifth = (sum(row[place] for row in rows) for place in range(len(TOKEN_METERS)))
    return first, second, third, fourth, fifth


def _places(amount_nanousd: int) -> int:
    """Return the decimals needed to write this amount in dollars exactly, at least two."""
    exponent = usd(amount_nanousd).normalize().as_tuple().exponent
    return max(_FEWEST_PLACES, -exponent) if isinstance(exponent, int) else _FEWEST_PLACES


def _line_as_json(line: Line, tolerance: Tolerance | None) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if tolerance is not None:
        plain = {
            "day": day_of(line.day_us).isoformat(),
            "model": None if line.model == ALL else line.model,
            "key": None if line.key == ALL else line.key,
            "only": line.only or None,
            "within_tolerance": tolerance.forgives(line),
        }
    if line.theirs_tokens is not None:
        sides = (line.theirs_tokens, line.ours_tokens, line.tokens_difference)
        plain["tokens"] = _sides(dict(zip(TOKEN_METERS, side, strict=True)) for side in sides)
    if line.theirs_nanousd is not None:
        amounts = (line.theirs_nanousd, line.ours_nanousd, line.nanousd_difference)
        plain["cost_usd"] = _sides(f"{usd(amount):.9f}" for amount in amounts)
        plain["disputed_usd"] = f"{usd(disputed_of(line)):.9f}"
    return plain


def _sides(values: Iterable[Any]) -> dict[str, Any]:
    return dict(zip(("theirs", "ours", "difference"), values, strict=True))
