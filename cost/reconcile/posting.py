"""Posting of a reconciliation: spreads each difference over the groups that it belongs to, as signed entries.

What is missing goes to the groups of that day and model in proportion to their cost; what is too much is taken from
them in proportion to what they have of it, so that no group falls below nothing. Both are exact: the parts add up to
the difference, to the token and to the nano-dollar.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from cost.dimensions import POSTED_COLUMNS
from cost.ledger.entries import BASELINE_COLUMNS, Entry, adjustment, price_of
from cost.meters import METER_COLUMNS
from cost.reconcile.matching import CHARGE, CostMeters, Line, Matching, OurRow, Reconciliation
from cost.reconcile.statement import COST_METERS, NO_PARTS, NO_TOKENS, PARTS, BadExport, Statement, Tokens
from cost.times import DAY_US, day_of

MAX_ENTRIES: Final = 100_000
_REQUEST: Final = COST_METERS.index("request")
_MOST_NANOUSD: Final = 10**18
"""Largest difference in one entry: far below what a column holds, so that sums of several fit too."""
_NO_COSTS: Final[CostMeters] = (0, 0, 0, 0, 0, 0)


class TooManyEntries(Exception):
    """The posting would have too many entries; a shorter range makes several postings."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the differences that one group gets."""

    row: OurRow
    tokens: Tokens = NO_TOKENS
    parts: tuple[int, ...] = NO_PARTS
    meters: CostMeters = _NO_COSTS

    @property
    def is_nothing(self) -> bool:
        """True if every amount is 0, so that no entry is needed."""
        return not (any(self.tokens) or any(self.meters) or any(self.parts))


def posting_id(statement: Statement, matching: Matching, reconciliation: Reconciliation) -> str:
    """Return an id that is the same for the same files, range and names, so that they are posted once."""
    words = (
        statement.digest,
        reconciliation.first_day.isoformat(),
        reconciliation.last_day.isoformat(),
        matching.organisation_id,
        *(f"{theirs}={ours}" for pairs in (matching.models, matching.keys) for theirs, ours in sorted(pairs)),
    )
    digest = sha256("\n".join(words).encode()).hexdigest()[:32]
    return f"reconciliation/{statement.provider}/{digest}"


def entries_of(
    reconciliation: Reconciliation, posting: str, now_us: int, max_entries: int = MAX_ENTRIES
) -> list[Entry]:
    """Return the entries that close every gap of days that are over and covered whole.

    Raises TooManyEntries or BadExport.
    """
    made: list[Entry] = []
    for line in postable(reconciliation, now_us):
        for share in shares(line):
            if any(abs(amount) > _MOST_NANOUSD for amount in share.meters):
                raise BadExport(
                    f"{day_of(line.day_us)} {line.model}: no difference of over a billion dollars is posted"
                )
            if len(made) == max_entries:
                raise TooManyEntries(f"more than {max_entries:,} entries; give a shorter range with --from and --to")
            made.append(_entry(share, f"{posting}/{len(made) + 1}"))
    return made


def postable(reconciliation: Reconciliation, now_us: int) -> list[Line]:
    """Return the differences that can be posted: days that are over and that the files cover whole."""
    return [line for line in reconciliation.lines if line.differs and line.whole and line.day_us + DAY_US <= now_us]


def shares(line: Line) -> list[Share]:
    """Spread one line's differences over its groups."""
    groups = _groups(line.rows) or [line.blank]
    # A day that the provider does not divide has rows of other charges, which have no tokens.
    counted = [row for row in groups if not row.target_id.startswith(CHARGE)] or [line.blank]
    rows = groups if set(map(_key, counted)) <= set(map(_key, groups)) else [*groups, *counted]
    tokens = _spread_tokens(line.tokens_difference, counted)
    dollars = _spread_dollars(line, groups)
    made = []
    for row in rows:
        mine = tokens.get(_key(row), NO_TOKENS)
        share = Share(
            row=row,
            tokens=mine,
            parts=_parts_change(row, mine),
            meters=dollars.get(_key(row), _NO_COSTS),
        )
        if not share.is_nothing:
            made.append(share)
    return made


def spread(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide a signed amount in proportion to weights by largest remainder; the parts add up to it exactly."""
    total = sum(weights)
    if total == 0:
        weights, total = [1] * len(weights), len(weights)
    size = abs(amount)
    parts = [size * weight // total for weight in weights]
    left = size - sum(parts)
    # Ties go to the first, so that the same books always give the same parts.
    by_remainder = sorted(range(len(weights)), key=lambda place: (-(size * weights[place] % total), place))
    for place in by_remainder[:left]:
        parts[place] += 1
    return parts if amount >= 0 else [-part for part in parts]


def _groups(rows: Sequence[OurRow]) -> list[OurRow]:
    """Merge rows with equal ledger dimensions, in a fixed order."""
    groups: dict[tuple[str, ...], OurRow] = {}
    for row in rows:
        before = groups.get(_key(row))
        groups[_key(row)] = row if before is None else _added(before, row)
    return [groups[key] for key in sorted(groups)]


def _key(row: OurRow) -> tuple[str, ...]:
    return tuple(getattr(row, name) for name in POSTED_COLUMNS)


def _added(one: OurRow, other: OurRow) -> OurRow:
    return msgspec.structs.replace(
        one,
        tokens=cast("Tokens", tuple(map(sum, zip(one.tokens, other.tokens, strict=True)))),
        parts=tuple(map(sum, zip(one.parts, other.parts, strict=True))),
        cost_nanousd=one.cost_nanousd + other.cost_nanousd,
        disputed_nanousd=one.disputed_nanousd + other.disputed_nanousd,
        own_baselines=tuple(map(sum, zip(one.own_baselines, other.own_baselines, strict=True))),
        meters=cast("CostMeters", tuple(map(sum, zip(one.meters, other.meters, strict=True)))),
    )


def _spread_tokens(differences: Tokens, rows: Sequence[OurRow]) -> Mapping[tuple[str, ...], Tokens]:
    by_cost = _cost_weights(rows)
    columns = [
        spread(difference, by_cost if difference >= 0 else [max(0, row.tokens[place]) for row in rows])
        for place, difference in enumerate(differences)
    ]
    return {_key(row): cast("Tokens", parts) for row, parts in zip(rows, zip(*columns, strict=True), strict=True)}


def _spread_dollars(line: Line, rows: Sequence[OurRow]) -> Mapping[tuple[str, ...], CostMeters]:
    by_cost = _cost_weights(rows)
    columns = []
    for place, difference in enumerate(_dollar_differences(line, rows)):
        too_much = [max(0, row.meters[place]) for row in rows]
        weights = too_much if difference < 0 and any(too_much) else by_cost
        columns.append(spread(difference, weights))
    return {_key(row): cast("CostMeters", parts) for row, parts in zip(rows, zip(*columns, strict=True), strict=True)}


def _dollar_differences(line: Line, rows: Sequence[OurRow]) -> CostMeters:
    """Return the difference by meter if the provider divides its cost so; else all under `request`."""
    whole = line.nanousd_difference
    if line.theirs_meters is not None:
        ours = [sum(column) for column in zip(*(row.meters for row in rows), strict=True)]
        differences = [a - b for a, b in zip(line.theirs_meters, ours, strict=True)]
        # The sums differ where we booked a cost without meters.
        if sum(differences) == whole:
            return cast("CostMeters", tuple(differences))
    differences = [0] * len(COST_METERS)
    differences[_REQUEST] = whole
    return cast("CostMeters", tuple(differences))


def _cost_weights(rows: Sequence[OurRow]) -> list[int]:
    """Return each group's cost as its weight, or its tokens when nothing cost anything."""
    costs = [max(0, row.cost_nanousd) for row in rows]
    return costs if any(costs) else [max(0, sum(row.tokens)) for row in rows]


def _parts_change(row: OurRow, tokens: Tokens) -> tuple[int, ...]:
    """Return the changes of the parts (at most 0) that keep those of each meter within what the group has left of it."""
    left = [max(0, booked + change) for booked, change in zip(row.tokens, tokens, strict=True)]
    changes: list[int] = []
    for place, part in zip(PARTS.values(), row.parts, strict=True):
        kept = part if tokens[place] >= 0 else min(part, left[place])
        left[place] -= kept
        changes.append(kept - part)
    return tuple(changes)


def _entry(share: Share, request_id: str) -> Entry:
    row = share.row
    fresh, cached, written, written_1h, output = share.tokens
    amounts = {f"{name}_nanousd": amount for name, amount in zip(COST_METERS, share.meters, strict=True)}
    return adjustment(
        request_id,
        # The last moment of the day that it corrects.
        at_us=row.day_us + DAY_US - 1,
        origin="reconciliation",
        meters_nanousd=[amounts.get(name, 0) for name in METER_COLUMNS],
        reason="reconciliation with the provider's own books",
        input_tokens=fresh + cached + written + written_1h,
        cached_input_tokens=cached,
        cache_write_tokens=written + written_1h,
        cache_write_1h_tokens=written_1h,
        output_tokens=output,
        **{f"{name}_tokens": change for name, change in zip(PARTS, share.parts, strict=True)},
        **{name: getattr(row, name) for name in POSTED_COLUMNS},
        **_baselines(row, sum(share.meters)),
    )


def _baselines(row: OurRow, change_nanousd: int) -> dict[str, Any]:
    """Return the changes of the baselines that are the attempts' own cost: a target saves nothing beside itself, whatever its bill."""
    if row.cost_nanousd <= 0:
        return {}
    found: dict[str, Any] = {}
    for name, own in zip(BASELINE_COLUMNS, row.own_baselines, strict=True):
        if change := (2 * change_nanousd * own + row.cost_nanousd) // (2 * row.cost_nanousd):
            found |= {name: change, price_of(name): f"{row.target_id}@{row.price_version}"}
    return found
