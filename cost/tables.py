"""Tables of the ledger, its roll-ups, prices, budgets, and the hours of our own GPUs."""

from typing import Any, ClassVar, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlmodel import Field, SQLModel

from cost.dimensions import ROLLED_UP
from cost.meters import LATER_COLUMNS, METER_COLUMNS, REPLAYED_COLUMNS, TOKEN_COLUMNS
from cost.scopes import LONGEST_ID

_ID = 200
_BUDGET_ID = 64
"""Width of id columns: wider than the gateway's own ids, because some come from callers and configurations."""
_PRICE = 2 * _ID + 1
"""Width of `target@version`."""
_UNIT = 64


def _amount() -> "Column[int]":
    """Return an integer column that is 0 in rows from before it existed."""
    return Column(BigInteger, nullable=False, server_default="0")


class LedgerEntry(SQLModel, table=True):
    """One ledger entry. Nothing is ever updated or deleted; its key makes writing it twice harmless."""

    __tablename__: ClassVar[str] = "ledger_entry"
    __table_args__ = (
        PrimaryKeyConstraint("request_id", "attempt", "entry", name="pk_ledger_entry"),
        Index("ix_ledger_entry_team_id_at_us", "team_id", "at_us"),
        # Recovery asks for the reserves of one dead process, and for nothing else of it.
        Index(
            "ix_ledger_entry_reserves",
            "boot_id",
            sqlite_where=text("entry = 'reserve'"),
            postgresql_where=text("entry = 'reserve'"),
        ),
        # Every period is summed up again to check the roll-ups against it.
        Index("ix_ledger_entry_at_us", "at_us"),
        # The experiment's two arms are small shares of the traffic. The index has all that the savings report reads of
        # them: by its entries alone a month of them is read in a tenth of a second, and by the rows in ten.
        Index(
            "ix_ledger_entry_arm",
            "at_us",
            "organisation_id",
            "team_id",
            "arm",
            "request_id",
            "entry",
            "cost_nanousd",
            sqlite_where=text("arm <> ''"),
            postgresql_where=text("arm <> ''"),
        ),
        # One end user of many is looked for.
        Index(
            "ix_ledger_entry_end_user",
            "organisation_id",
            "end_user",
            "at_us",
            sqlite_where=text("end_user <> ''"),
            postgresql_where=text("end_user <> ''"),
        ),
        # A rollout compares the newest attempts of one pool's targets.
        Index(
            "ix_ledger_entry_version",
            "target_id",
            "at_us",
            sqlite_where=text("version <> ''"),
            postgresql_where=text("version <> ''"),
        ),
    )

    request_id: str = Field(sa_column=Column(String(_ID), nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    entry: str = Field(sa_column=Column(String(16), nullable=False))
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    boot_id: str = Field(sa_column=Column(String(64), nullable=False))
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    key_id: str = Field(sa_column=Column(String(64), nullable=False))
    tier: str = Field(sa_column=Column(String(32), nullable=False))
    alias: str = Field(sa_column=Column(String(_ID), nullable=False))
    target_id: str = Field(sa_column=Column(String(_ID), nullable=False))
    deployment_id: str = Field(sa_column=Column(String(_ID), nullable=False))
    provider: str = Field(sa_column=Column(String(_ID), nullable=False))
    price_version: str = Field(sa_column=Column(String(_ID), nullable=False))
    input_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cached_input_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cache_write_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    output_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    reasoning_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cost_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    baseline_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    usage_source: str = Field(sa_column=Column(String(16), nullable=False))
    flags: str = Field(sa_column=Column(Text, nullable=False))
    """JSON array of names, as text: read by people and by `Entry`, never searched."""
    status: int = Field(sa_column=Column(Integer, nullable=False))
    stream: bool = Field(sa_column=Column(Boolean, nullable=False))
    complexity: float | None = Field(sa_column=Column(Float(53), nullable=True))
    reason: str = Field(sa_column=Column(Text, nullable=False))
    ttft_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    duration_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    tag: str = Field(sa_column=Column(String(64), nullable=False, server_default=text("''")))
    pool: str = Field(sa_column=Column(String(64), nullable=False, server_default=text("''")))
    origin: str = Field(sa_column=Column(String(16), nullable=False, server_default="caller"))
    served: bool = Field(sa_column=Column(Boolean, nullable=False, server_default=false()))
    arm: str = Field(sa_column=Column(String(16), nullable=False, server_default=text("''")))
    baseline_price: str = Field(sa_column=Column(String(_PRICE), nullable=False, server_default=text("''")))
    cheapest_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    cheapest_price: str = Field(sa_column=Column(String(_PRICE), nullable=False, server_default=text("''")))
    hosted_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    hosted_price: str = Field(sa_column=Column(String(_PRICE), nullable=False, server_default=text("''")))
    priced_attempts: int = Field(sa_column=_amount())
    margin_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    margin_why: str = Field(sa_column=Column(String(16), nullable=False, server_default=text("''")))
    considered: str = Field(sa_column=Column(Text, nullable=False, server_default=text("''")))
    version: str = Field(sa_column=Column(String(64), nullable=False, server_default=text("''")))
    batch_saved_nanousd: int = Field(sa_column=_amount())
    disputed_nanousd: int = Field(sa_column=_amount())
    unit: str = Field(sa_column=Column(String(_UNIT), nullable=False, server_default=text("''")))
    quantity_milli: int = Field(sa_column=_amount())
    end_user: str = Field(sa_column=Column(String(64), nullable=False, server_default=text("''")))
    began_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    queued_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    given_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    replayed_input_tokens: int = Field(sa_column=_amount())
    replayed_output_tokens: int = Field(sa_column=_amount())
    cache_saved_nanousd: int = Field(sa_column=_amount())


# The columns of the meters follow their table, but for those of the first schema, which have no default.
for _name in (*TOKEN_COLUMNS, *METER_COLUMNS):
    if _name not in LedgerEntry.model_fields:
        setattr(LedgerEntry, _name, _amount())


# The roll-ups: sums over every entry but reserves, kept in the transaction that writes the entries. `requests` counts a
# caller's requests, by the end of their first attempt; `attempts` what was settled or expired; `served` the requests
# whose answer came from here. `…_rows` tell how many entries have the figure before it.
ROLLUP_DIMENSIONS = ("start_us", *(each.column for each in ROLLED_UP))
CACHE_SUMS: Final = ("cache_hits", *REPLAYED_COLUMNS)
"""Sums of the answers that were given again; they are in none of the others."""
ROLLUP_SUMS = (
    "requests",
    "attempts",
    "served",
    *TOKEN_COLUMNS,
    "quantity_milli",
    "cost_nanousd",
    *METER_COLUMNS,
    "baseline_nanousd",
    "baseline_rows",
    "cheapest_nanousd",
    "cheapest_rows",
    "hosted_nanousd",
    "hosted_rows",
    "unpriced_attempts",
    "estimated_attempts",
    "batch_saved_nanousd",
    "disputed_nanousd",
    *CACHE_SUMS,
)
_ADDED: Final = {
    name: text("0")
    for name in ("quantity_milli", "batch_saved_nanousd", "disputed_nanousd", *CACHE_SUMS, *LATER_COLUMNS)
}
"""Defaults of later columns in sums that were there before."""


def _rollup(name: str, *, without: frozenset[str] = frozenset()) -> Table:
    columns: list[Column[Any]] = [Column("start_us", BigInteger, nullable=False)]
    columns += [
        Column(each.column, String(each.width), nullable=False, server_default=text("''") if each.later else None)
        for each in ROLLED_UP
        if each.column not in without
    ]
    columns += [Column(each, BigInteger, nullable=False, server_default=_ADDED.get(each)) for each in ROLLUP_SUMS]
    # The team first, where there is one: most questions are one team's, over some time.
    first = ("organisation_id" if "team_id" in without else "team_id", "start_us")
    key = (*first, *(each for each in ROLLUP_DIMENSIONS if each not in {*first, *without}))
    return Table(
        name,
        SQLModel.metadata,
        *columns,
        PrimaryKeyConstraint(*key, name=f"pk_{name}"),
        Index(f"ix_{name}_start_us", "start_us"),
    )


rollup_hour = _rollup("rollup_hour")
rollup_day = _rollup("rollup_day")

# The same days with fewer dimensions: a team of 8,000 keys has a thousandth of the rows here.
_OF_KEYS: Final = frozenset({"key_id", "tag"})
rollup_team_model_day = _rollup("rollup_team_model_day", without=_OF_KEYS)
rollup_team_day = _rollup("rollup_team_day", without=_OF_KEYS | {"target_id", "provider", "tier", "price_version"})
rollup_model_day = _rollup("rollup_model_day", without=_OF_KEYS | {"team_id"})
COARSER_DAYS: Final = (rollup_team_model_day, rollup_team_day, rollup_model_day)
"""Roll-ups that are made of `rollup_day`, in the order in which they are written."""


class SpendDay(SQLModel, table=True):
    """Spend of one scope of `cost.scopes` on one UTC day, which budgets read.

    It has everything of the ledger that was booked to a request or corrected since, but no true-up and no idle GPU: a
    budget counts at the planned rate.
    """

    __tablename__: ClassVar[str] = "spend_day"
    __table_args__ = (
        PrimaryKeyConstraint("scope", "scope_id", "day_us", name="pk_spend_day"),
        # A day may have a row of each of a hundred thousand end users.
        Index("ix_spend_day_day_us", "day_us"),
    )

    scope: str = Field(sa_column=Column(String(16), nullable=False))
    scope_id: str = Field(sa_column=Column(String(LONGEST_ID), nullable=False))
    day_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    spent_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))


class EndUserMonth(SQLModel, table=True):
    """Spend of one end user of a team in one UTC month, so that the largest are found without adding up the others."""

    __tablename__: ClassVar[str] = "end_user_month"
    __table_args__ = (
        PrimaryKeyConstraint("team_id", "month_us", "end_user", name="pk_end_user_month"),
        Index("ix_end_user_month_spent", "team_id", "month_us", "spent_nanousd"),
    )

    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    month_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    end_user: str = Field(sa_column=Column(String(64), nullable=False))
    spent_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))


class SpendQuarter(SQLModel, table=True):
    """The same as `spend_day`, in a quarter of an hour: where a budget's hour, or a day of its time zone, begins or ends."""

    __tablename__: ClassVar[str] = "spend_quarter"
    __table_args__ = (
        PrimaryKeyConstraint("scope", "scope_id", "start_us", name="pk_spend_quarter"),
        Index("ix_spend_quarter_start_us", "start_us"),
    )

    scope: str = Field(sa_column=Column(String(16), nullable=False))
    scope_id: str = Field(sa_column=Column(String(LONGEST_ID), nullable=False))
    start_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    spent_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))


class Boot(SQLModel, table=True):
    """A process that writes entries, and when it was last seen alive."""

    __tablename__: ClassVar[str] = "boot"

    boot_id: str = Field(sa_column=Column(String(64), primary_key=True))
    host: str = Field(sa_column=Column(String(_ID), nullable=False))
    started_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    seen_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class JournalPlace(SQLModel, table=True):
    """The place up to which this database has a process's journal.

    It is written to the database itself, so a database that is restored from a backup says by itself what it lacks.
    """

    __tablename__: ClassVar[str] = "journal_place"

    boot_id: str = Field(sa_column=Column(String(64), primary_key=True))
    segment: int = Field(sa_column=Column(BigInteger, nullable=False))
    position: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Bytes of that segment."""
    lines: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Lines of that segment in those bytes."""
    total: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Lines of the whole journal up to the place."""
    moved_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class LedgerCheck(SQLModel, table=True):
    """State of a verification of the roll-ups; a process claims the next one by changing `begun_us`."""

    __tablename__: ClassVar[str] = "ledger_check"

    name: str = Field(sa_column=Column(String(16), primary_key=True))
    begun_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    done_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """End of the last finished check in microseconds since 1970; 0 before the first."""
    differences: int = Field(sa_column=Column(BigInteger, nullable=False))


class PriceVersion(SQLModel, table=True):
    """A price that something was booked at, or that an operator entered; immutable, but for its withdrawal."""

    __tablename__: ClassVar[str] = "price_version"
    __table_args__ = (PrimaryKeyConstraint("target_id", "version", name="pk_price_version"),)

    target_id: str = Field(sa_column=Column(String(_ID), nullable=False))
    version: str = Field(sa_column=Column(String(_ID), nullable=False))
    source: str = Field(sa_column=Column(String(16), nullable=False))
    """`config`, `litellm` or `override`."""
    effective_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Microseconds since 1970 from which it is the price; 0 for one without a date."""
    figures: str = Field(sa_column=Column(Text, nullable=False))
    """`cost.prices.Price` as JSON."""
    note: str = Field(sa_column=Column(Text, nullable=False, server_default=text("''")))
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    withdrawn_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    """Moment at which an override was withdrawn; it is no longer chosen, and what was booked at it stays."""


class BudgetRow(SQLModel, table=True):
    """Spending limit of a scope for a day, a week or a month."""

    __tablename__: ClassVar[str] = "budget"
    __table_args__ = (UniqueConstraint("scope", "scope_id", "period", "kind", name="uq_budget_scope"),)

    budget_id: str = Field(sa_column=Column(String(_BUDGET_ID), primary_key=True))
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    scope: str = Field(sa_column=Column(String(16), nullable=False))
    scope_id: str = Field(sa_column=Column(String(LONGEST_ID), nullable=False))
    period: str = Field(sa_column=Column(String(16), nullable=False))
    kind: str = Field(sa_column=Column(String(16), nullable=False))
    """`hard` or `soft`."""
    limit_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))
    on_exhausted: str = Field(sa_column=Column(String(16), nullable=False))
    """`refuse` or `downgrade`."""
    webhook: str = Field(sa_column=Column(String(64), nullable=False, server_default=text("''")))
    """Name of the configured webhook that its warnings go to; empty for none."""
    raised_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    """Limit that holds instead before `raised_until_us`."""
    raised_until_us: int = Field(sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    opening_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    """Booked before it was made, of a prepaid budget; it does not count."""
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    updated_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class BudgetTopup(SQLModel, table=True):
    """An amount paid into a prepaid budget, or taken back; never changed. Their sum is the budget's limit."""

    __tablename__: ClassVar[str] = "budget_topup"
    __table_args__ = (PrimaryKeyConstraint("budget_id", "topup_id", name="pk_budget_topup"),)

    budget_id: str = Field(sa_column=Column(String(64), nullable=False))
    topup_id: str = Field(sa_column=Column(String(64), nullable=False))
    amount_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))
    note: str = Field(sa_column=Column(String(_ID), nullable=False))
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class CalendarRow(SQLModel, table=True):
    """An organisation's calendar from a moment on: it cuts budgets and reports until the next one."""

    __tablename__: ClassVar[str] = "calendar"
    __table_args__ = (PrimaryKeyConstraint("organisation_id", "from_us", name="pk_calendar"),)

    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    from_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    time_zone: str = Field(sa_column=Column(String(64), nullable=False))
    week_start: str = Field(sa_column=Column(String(16), nullable=False))
    set_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class BudgetGrant(SQLModel, table=True):
    """Part of a hard budget that one process may spend without asking again; not in `spend_day` yet.

    It belongs to no period: what is held at the end of one may be spent in the next, and counts in both.
    """

    __tablename__: ClassVar[str] = "budget_grant"
    __table_args__ = (PrimaryKeyConstraint("budget_id", "boot_id", name="pk_budget_grant"),)

    budget_id: str = Field(sa_column=Column(String(_BUDGET_ID + 1 + LONGEST_ID), nullable=False))
    """The budget's id; of one for each end user, with `/` and the scope id that this grant is of."""
    boot_id: str = Field(sa_column=Column(String(64), nullable=False))
    granted_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))


class PoolHour(SQLModel, table=True):
    """Time that a replica of a pool was up within one hour; its GPUs' cost follows from it."""

    __tablename__: ClassVar[str] = "pool_hour"
    __table_args__ = (PrimaryKeyConstraint("pool", "hour_us", "replica", name="pk_pool_hour"),)

    pool: str = Field(sa_column=Column(String(64), nullable=False))
    hour_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    replica: str = Field(sa_column=Column(String(_ID), nullable=False))
    up_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    source: str = Field(sa_column=Column(String(16), nullable=False))
    """`entered`, `fleet` or `configured`; without a row the configuration says how many replicas are up."""


class TrueUp(SQLModel, table=True):
    """Posted bill of one pool's UTC day. A later revision of the same day posts what changed since."""

    __tablename__: ClassVar[str] = "true_up"
    __table_args__ = (PrimaryKeyConstraint("pool", "day_us", "revision", name="pk_true_up"),)

    pool: str = Field(sa_column=Column(String(64), nullable=False))
    day_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    revision: int = Field(sa_column=Column(Integer, nullable=False))
    bill_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))
    up_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    busy_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    posted_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class ClosedMonth(SQLModel, table=True):
    """A month that an organisation signed off: its figures are kept as they were, and later postings go elsewhere."""

    __tablename__: ClassVar[str] = "closed_month"
    __table_args__ = (PrimaryKeyConstraint("organisation_id", "start_us", name="pk_closed_month"),)

    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    start_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The first microsecond of the same month in UTC: it names the month, whatever calendar cut it."""
    end_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Its end by the organisation's calendar."""
    closed_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    closed_by: str = Field(sa_column=Column(String(_ID), nullable=False))
    comment: str = Field(sa_column=Column(Text, nullable=False))
    figures: str = Field(sa_column=Column(Text, nullable=False))
    """`cost.close.closing.SignedFigures` as JSON."""
    statement: str = Field(sa_column=Column(Text, nullable=False))
    """The statement as CSV, as it was when the month was signed."""


class MonthMark(SQLModel, table=True):
    """A person's word on one step of a month's checklist: a tick, a comment, or both. The last one counts."""

    __tablename__: ClassVar[str] = "month_mark"
    __table_args__ = (PrimaryKeyConstraint("organisation_id", "start_us", "step", name="pk_month_mark"),)

    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    start_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    step: str = Field(sa_column=Column(String(_ID), nullable=False))
    ticked: bool = Field(sa_column=Column(Boolean, nullable=False))
    said: str = Field(sa_column=Column(Text, nullable=False))
    """Text of the step when it was ticked: a tick holds while it says the same."""
    comment: str = Field(sa_column=Column(Text, nullable=False))
    marked_by: str = Field(sa_column=Column(String(_ID), nullable=False))
    marked_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class ComparedDay(SQLModel, table=True):
    """A day that was compared with a provider's own books, and the last result."""

    __tablename__: ClassVar[str] = "compared_day"
    __table_args__ = (PrimaryKeyConstraint("organisation_id", "day_us", "provider", name="pk_compared_day"),)

    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    day_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    provider: str = Field(sa_column=Column(String(_ID), nullable=False))
    """Name of the provider in lower case, as names are compared."""
    outcome: str = Field(sa_column=Column(String(16), nullable=False))
    """`agrees`, `differs` or `posted`."""
    compared_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class LatePosting(SQLModel, table=True):
    """An entry that came after its month was signed off, and so stands in a later one."""

    __tablename__: ClassVar[str] = "late_posting"
    __table_args__ = (
        PrimaryKeyConstraint("request_id", "attempt", "entry", name="pk_late_posting"),
        Index("ix_late_posting_organisation_id_at_us", "organisation_id", "at_us"),
        Index("ix_late_posting_organisation_id_posted_at_us", "organisation_id", "posted_at_us"),
        Index("ix_late_posting_pool_day_us", "pool", "day_us"),
    )

    request_id: str = Field(sa_column=Column(String(_ID), nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    entry: str = Field(sa_column=Column(String(16), nullable=False))
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The moment that it belongs to."""
    day_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    posted_at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The moment that it stands at in the ledger: the beginning of a month that was open."""
    pool: str = Field(sa_column=Column(String(64), nullable=False))
    """The pool whose bill of the old day it belongs to; the entry itself names none, or it would be in the new day's."""
    origin: str = Field(sa_column=Column(String(16), nullable=False))
    cost_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))


class EventStreamRow(SQLModel, table=True):
    """The one stream of events about entries: which process tells it, and the last number that was given.

    Entries are noted in `event_outbox` while some process was seen to tell it.
    """

    __tablename__: ClassVar[str] = "event_stream"

    name: str = Field(sa_column=Column(String(16), primary_key=True))
    sequence: int = Field(sa_column=Column(BigInteger, nullable=False))
    holder: str = Field(sa_column=Column(String(64), nullable=False))
    held_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    seen_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class EventOutboxRow(SQLModel, table=True):
    """An entry that sinks are to be told of. It is written in the entry's own transaction and numbered later, once it can be
    seen, so that numbers follow the order of commits.
    """

    __tablename__: ClassVar[str] = "event_outbox"
    __table_args__ = (
        PrimaryKeyConstraint("request_id", "attempt", "entry", name="pk_event_outbox"),
        Index("ix_event_outbox_sequence", "sequence", unique=True),
        Index(
            "ix_event_outbox_unnumbered",
            "written_us",
            sqlite_where=text("sequence IS NULL"),
            postgresql_where=text("sequence IS NULL"),
        ),
    )

    request_id: str = Field(sa_column=Column(String(_ID), nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    entry: str = Field(sa_column=Column(String(16), nullable=False))
    written_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    sequence: int | None = Field(sa_column=Column(BigInteger, nullable=True))


class EventSinkRow(SQLModel, table=True):
    """The number of the last event that a sink acknowledged."""

    __tablename__: ClassVar[str] = "event_sink"

    name: str = Field(sa_column=Column(String(64), primary_key=True))
    sequence: int = Field(sa_column=Column(BigInteger, nullable=False))
    moved_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class ArchivedMonth(SQLModel, table=True):
    """A UTC month of the ledger that is being put into files, or stands there."""

    __tablename__: ClassVar[str] = "archived_month"

    month_us: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    place: str = Field(sa_column=Column(Text, nullable=False))
    """The folder, or `s3://BUCKET/PREFIX`."""
    run: str = Field(sa_column=Column(String(64), nullable=False))
    """Folder of the files within it, of this run alone."""
    state: str = Field(sa_column=Column(String(16), nullable=False))
    """`cost.ledger.archived.State`."""
    holder: str = Field(sa_column=Column(String(64), nullable=False))
    held_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    changed_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class ArchivedFile(SQLModel, table=True):
    """One file of such a month, of entries of one UTC day."""

    __tablename__: ClassVar[str] = "archived_file"
    __table_args__ = (
        PrimaryKeyConstraint("month_us", "number", name="pk_archived_file"),
        Index("ix_archived_file_day_us", "day_us"),
    )

    month_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    number: int = Field(sa_column=Column(Integer, nullable=False))
    name: str = Field(sa_column=Column(String(_ID), nullable=False))
    sha256: str = Field(sa_column=Column(String(64), nullable=False))
    bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    rows: int = Field(sa_column=Column(BigInteger, nullable=False))
    day_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    last_key: str = Field(sa_column=Column(Text, nullable=False))
    """Moment and key of its last entry as JSON: the next file goes on behind it."""
    sums: str = Field(sa_column=Column(Text, nullable=False))
    """What it adds to each of `ROLLUP_SUMS`, as JSON."""
    is_gone: bool = Field(sa_column=Column(Boolean, nullable=False))
    """True if its entries are in the ledger no more."""
