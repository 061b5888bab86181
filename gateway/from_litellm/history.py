"""What was spent before, as opening balances: postings by day, team, key and model, so that reports have it and budgets run on.

Each group is one sum. What of it was posted before is looked up, and the rest alone is posted: an import that is made again, on the day
of the switch, adds what has come since. `weighbridge ledger reverse correction/opening-litellm` takes all of it back.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.budgets.periods import start_us
from cost.end_users import booked
from cost.ledger.entries import BOOKS, Entry, adjustment
from cost.ledger.store import LedgerStore
from cost.meters import METER_COLUMNS
from cost.prices import usd
from cost.scopes import ROWS, Scope
from cost.tables import LedgerEntry
from cost.times import start_of
from gateway.from_litellm.applied import Applied
from gateway.from_litellm.models import Models
from gateway.from_litellm.plan import Cap, Plan, nanousd_in
from gateway.from_litellm.tables import FILE, Row, Theirs
from gateway.from_litellm.told import Account

POSTING: Final = "correction/opening-litellm"
_BATCH: Final = 500
_TEXT: Final = 200
_LEAST_NANOUSD: Final = 1_000
"""A difference of a millionth of a dollar is one of rounding."""
_OPENED: Final[tuple[Scope, ...]] = ("key", "end_user", "team")
"""Scopes whose running budgets go on. A key's comes first: what is added to it is its team's, too."""
_REQUEST: Final = METER_COLUMNS.index("request_nanousd")


class Group(NamedTuple):
    """What one sum is of. `day` is a UTC day, or the day before all that are told apart."""

    organisation_id: str
    team_id: str
    key_id: str
    model: str
    provider: str
    end_user: str
    day: date
    opening: bool = False
    """True for what LiteLLM counts of a budget and has no days for."""


class Sums(NamedTuple):
    """Dollars and tokens of a group."""

    nanousd: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def plus(self, other: "Sums", sign: int = 1) -> "Sums":
        """Return both together."""
        return Sums(*(mine + sign * theirs for mine, theirs in zip(self, other, strict=True)))


class Posted(NamedTuple):
    """What was posted: groups, and dollars."""

    groups: int
    nanousd: int


async def post_history(
    engine: AsyncEngine,
    theirs: Theirs,
    plan: Plan,
    applied: Applied,
    models: Models,
    account: Account,
    *,
    since: date,
    now: datetime,
    dry_run: bool,
) -> Posted:
    """Post what is not posted yet."""
    sums = _Books(plan, applied, models, account, since).sums(theirs, now)
    entries = list(_entries(sums, await _posted(engine)))
    if not dry_run:
        for place in range(0, len(entries), _BATCH):
            await LedgerStore(engine).insert(entries[place : place + _BATCH])
    return Posted(len(entries), sum(each.cost_nanousd or 0 for each in entries))


class _Books:
    """Sums by group, from LiteLLM's days and from what it counts of budgets."""

    def __init__(self, plan: Plan, applied: Applied, models: Models, account: Account, since: date) -> None:
        self._plan = plan
        self._applied = applied
        self._models = models
        self._account = account
        self._before = since - timedelta(days=1)
        self._owners = {team.team_id: team.organisation_id for team in plan.teams}
        self._sums: dict[Group, Sums] = defaultdict(Sums)
        self._by_scope: dict[tuple[str, str], dict[date, int]] = defaultdict(lambda: defaultdict(int))
        """Nano-dollars by scope, its id and day."""
        self._lost_nanousd = 0

    def sums(self, theirs: Theirs, now: datetime) -> Mapping[Group, Sums]:
        of_teams = {
            str(row["token"]) for row in theirs["keys"] if row.get("team_id") in self._plan.organisation_of_team
        }
        for row in theirs.spent:
            # Days of users are of all keys; those of teams are told by team, also of keys that are gone.
            if row.get("team_id") is not None or (
                str(row["api_key"]) in self._applied.keys and str(row["api_key"]) not in of_teams
            ):
                self._add(row)
        for row in theirs.spent_by_end_users:
            self._move_to_end_user(row)
        for group, sums in self._sums.items():
            self._count(group, sums.nanousd)
        for scope in _OPENED:
            for cap in self._applied.caps:
                if cap.budget.scope == scope:
                    self._open(cap, now)
        if self._lost_nanousd:
            lost = f"${usd(self._lost_nanousd):,.2f} of teams that are gone was left behind"
            self._account.note(FILE, 0, "spending", "not possible", lost)
        return self._sums

    def _place(self, row: Row) -> tuple[str, str, str] | None:
        """Return organisation, team and key of a row; None for a team that is gone."""
        key = self._applied.keys.get(str(row["api_key"]))
        if key is not None and row.get("team_id") is None:
            return key[1].organisation_id, key[1].team_id, key[0]
        team_id = self._plan.organisation_of_team.get(str(row.get("team_id")))
        if team_id is None:
            return None
        is_its = key is not None and key[1].team_id == team_id
        return self._owners[team_id], team_id, key[0] if key is not None and is_its else ""

    def _group(self, row: Row, place: tuple[str, str, str], end_user: str = "") -> Group:
        named = str(row.get("model") or "")
        behind = self._models.names.get(named)
        model = behind[0] if behind else named
        return Group(*place, model[:_TEXT], str(row.get("provider") or "")[:_TEXT], end_user, self._day(row.get("day")))

    def _day(self, value: Any) -> date:
        try:
            return date.fromisoformat(str(value)) if value else self._before
        except ValueError:
            return self._before

    def _add(self, row: Row) -> None:
        place, sums = self._place(row), _sums_of(row)
        if place is None:
            self._lost_nanousd += sums.nanousd
        elif any(sums):
            group = self._group(row, place)
            self._sums[group] = self._sums[group].plus(sums)

    def _move_to_end_user(self, row: Row) -> None:
        """Take what an end user spent out of their team's sum, and put it under their name."""
        place, sums = self._place(row), _sums_of(row)
        if place is None or not row.get("end_user") or not any(sums):
            return
        plain, own = self._group(row, place), self._group(row, place, booked(str(row["end_user"])))
        self._sums[plain] = self._sums[plain].plus(sums, -1)
        self._sums[own] = self._sums[own].plus(sums)

    def _count(self, group: Group, nanousd: int) -> None:
        for scope in _OPENED:
            place = ROWS[scope].id_of(_Spender(group))
            if place:
                self._by_scope[scope, place][group.day] += nanousd

    def _open(self, cap: Cap, now: datetime) -> None:
        """Add what LiteLLM counts of a budget's running time, and its days do not have."""
        budget = cap.budget
        if budget.kind != "hard" or cap.spent_nanousd is None:
            return
        begins = datetime.fromtimestamp(
            start_us(budget.period, int(now.timestamp() * 1_000_000)) / 1_000_000, UTC
        ).date()
        first = max(begins, self._before)
        days = self._by_scope[budget.scope, budget.scope_id]
        left = cap.spent_nanousd - sum(amount for day, amount in days.items() if day >= first)
        group = self._opening(budget.organisation_id, budget.scope, budget.scope_id, first)
        if group is not None:
            # Also where nothing is left: an earlier import may have posted what days tell by now.
            left = left if abs(left) >= _LEAST_NANOUSD else 0
            self._sums[group] = self._sums[group].plus(Sums(left))
            self._count(group, left)

    def _opening(self, organisation_id: str, scope: str, scope_id: str, day: date) -> Group | None:
        if scope == "key":
            found = next((team for key_id, team in self._applied.keys.values() if key_id == scope_id), None)
            return (
                None
                if found is None
                else Group(organisation_id, found.team_id, scope_id, "", "", "", day, opening=True)
            )
        team_id, _, end_user = scope_id.partition("/")
        return Group(organisation_id, team_id, "", "", "", end_user, day, opening=True)


class _Spender:
    """A group under the names that scopes read."""

    def __init__(self, group: Group) -> None:
        self.organisation_id, self.team_id, self.key_id = group.organisation_id, group.team_id, group.key_id
        self.target_id, self.provider, self.end_user, self.tag = group.model, group.provider, group.end_user, ""


def _sums_of(row: Row) -> Sums:
    return Sums(
        nanousd_in(row.get("spend")) or 0, int(row.get("input_tokens") or 0), int(row.get("output_tokens") or 0)
    )


async def _posted(engine: AsyncEngine) -> dict[str, tuple[int, Sums]]:
    """Return how many entries each group has, and what they come to."""
    request_id = col(LedgerEntry.request_id)
    query = select(
        request_id,
        func.coalesce(col(LedgerEntry.cost_nanousd), 0),
        col(LedgerEntry.input_tokens),
        col(LedgerEntry.output_tokens),
    ).where(request_id.startswith(f"{POSTING}/", autoescape=True), col(LedgerEntry.boot_id) == BOOKS)
    found: dict[str, tuple[int, Sums]] = defaultdict(lambda: (0, Sums()))
    async with engine.connect() as connection:
        for named, cost, input_tokens, output_tokens in await connection.execute(query):
            digest, _, number = str(named).removeprefix(f"{POSTING}/").partition(".")
            if number.isdecimal():
                before = found[digest]
                found[digest] = before[0] + 1, before[1].plus(Sums(int(cost), int(input_tokens), int(output_tokens)))
    return found


def _entries(sums: Mapping[Group, Sums], posted: Mapping[str, tuple[int, Sums]]) -> Iterator[Entry]:
    for group, wanted in sorted(sums.items(), key=lambda each: (each[0].day, repr(each[0]))):
        digest = blake2b("\0".join(map(str, group)).encode(), digest_size=12).hexdigest()
        number, before = posted.get(digest, (0, Sums()))
        left = wanted.plus(before, -1)
        if any(left):
            yield _entry(group, f"{POSTING}/{digest}.{number + 1}", left)


def _entry(group: Group, request_id: str, sums: Sums) -> Entry:
    meters = [0] * len(METER_COLUMNS)
    meters[_REQUEST] = sums.nanousd
    return adjustment(
        request_id,
        at_us=start_of(group.day) + 1,
        origin="correction",
        meters_nanousd=meters,
        reason="opening balance from LiteLLM",
        organisation_id=group.organisation_id,
        team_id=group.team_id,
        key_id=group.key_id,
        tier="interactive",
        target_id=group.model,
        provider=group.provider,
        price_version="",
        end_user=group.end_user,
        input_tokens=sums.input_tokens,
        output_tokens=sums.output_tokens,
    )


def end_user_pairs(theirs: Theirs, applied: Applied) -> Iterable[tuple[str, str, str]]:
    """Return organisation, team and end user of all that were seen together."""
    found: dict[tuple[str, str, str], None] = {}
    for row in theirs.spent_by_end_users:
        key = applied.keys.get(str(row["api_key"]))
        if key is not None and row.get("end_user"):
            found[key[1].organisation_id, key[1].team_id, str(row["end_user"])] = None
    return found
