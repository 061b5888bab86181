"""Meters, tags and the baselines of each entry; roll-ups, prices, budgets, the hours of our own GPUs, keys' roles."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_AMOUNTS = (
    "cache_write_1h_tokens",
    "input_nanousd",
    "cached_input_nanousd",
    "cache_write_nanousd",
    "cache_write_1h_nanousd",
    "output_nanousd",
    "reasoning_nanousd",
    "request_nanousd",
    "priced_attempts",
)
_TEXTS = {"tag": 64, "pool": 64, "arm": 16, "baseline_price": 401, "cheapest_price": 401, "hosted_price": 401}
_BASELINES = ("cheapest_nanousd", "hosted_nanousd")
_ROLLUPS = ("rollup_hour", "rollup_day")
_TABLES = (
    "true_up",
    "pool_hour",
    "webhook_message",
    "budget_grant",
    "budget",
    "price_version",
    "ledger_check",
    "boot",
    "spend_day",
)


def upgrade() -> None:
    _widen_ledger()
    op.add_column("api_key", sa.Column("role", sa.String(16), nullable=False, server_default="member"))
    for name in _ROLLUPS:
        _create_rollup(name)
    _create_spend()
    _create_budgets()
    _create_pools()
    _fill_in()


def downgrade() -> None:
    for table in (*_TABLES, *reversed(_ROLLUPS)):
        op.drop_table(table)
    op.drop_column("api_key", "role")
    op.drop_index("ix_ledger_entry_arm", "ledger_entry")
    op.drop_index("ix_ledger_entry_at_us", "ledger_entry")
    for name in (*_AMOUNTS, *_TEXTS, *_BASELINES, "origin", "served"):
        op.drop_column("ledger_entry", name)


def _widen_ledger() -> None:
    for name in _AMOUNTS:
        op.add_column("ledger_entry", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    for name, width in _TEXTS.items():
        op.add_column("ledger_entry", sa.Column(name, sa.String(width), nullable=False, server_default=sa.text("''")))
    for name in _BASELINES:
        op.add_column("ledger_entry", sa.Column(name, sa.BigInteger(), nullable=True))
    op.add_column("ledger_entry", sa.Column("origin", sa.String(16), nullable=False, server_default="caller"))
    op.add_column("ledger_entry", sa.Column("served", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index("ix_ledger_entry_at_us", "ledger_entry", ["at_us"])
    op.create_index(
        "ix_ledger_entry_arm",
        "ledger_entry",
        ["at_us"],
        sqlite_where=sa.text("arm <> ''"),
        postgresql_where=sa.text("arm <> ''"),
    )


def _create_rollup(name: str) -> None:
    op.create_table(
        name,
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("target_id", sa.String(200), nullable=False),
        sa.Column("provider", sa.String(200), nullable=False),
        sa.Column("tier", sa.String(32), nullable=False),
        sa.Column("tag", sa.String(64), nullable=False),
        sa.Column("price_version", sa.String(200), nullable=False),
        sa.Column("pool", sa.String(64), nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        *(sa.Column(each, sa.BigInteger(), nullable=False) for each in _SUMS),
        sa.PrimaryKeyConstraint(
            "team_id",
            "start_us",
            "organisation_id",
            "key_id",
            "target_id",
            "provider",
            "tier",
            "tag",
            "price_version",
            "pool",
            "origin",
            name=f"pk_{name}",
        ),
    )
    op.create_index(f"ix_{name}_start_us", name, ["start_us"])


_SUMS = (
    "requests",
    "attempts",
    "served",
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost_nanousd",
    "input_nanousd",
    "cached_input_nanousd",
    "cache_write_nanousd",
    "cache_write_1h_nanousd",
    "output_nanousd",
    "reasoning_nanousd",
    "request_nanousd",
    "baseline_nanousd",
    "baseline_rows",
    "cheapest_nanousd",
    "cheapest_rows",
    "hosted_nanousd",
    "hosted_rows",
    "unpriced_attempts",
    "estimated_attempts",
)


def _create_spend() -> None:
    op.create_table(
        "spend_day",
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("scope_id", sa.String(200), nullable=False),
        sa.Column("day_us", sa.BigInteger(), nullable=False),
        sa.Column("spent_nanousd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "scope_id", "day_us", name="pk_spend_day"),
    )
    op.create_table(
        "boot",
        sa.Column("boot_id", sa.String(64), primary_key=True),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "ledger_check",
        sa.Column("name", sa.String(16), primary_key=True),
        sa.Column("begun_us", sa.BigInteger(), nullable=False),
        sa.Column("done_us", sa.BigInteger(), nullable=False),
        sa.Column("differences", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "price_version",
        sa.Column("target_id", sa.String(200), nullable=False),
        sa.Column("version", sa.String(200), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("effective_us", sa.BigInteger(), nullable=False),
        sa.Column("figures", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("withdrawn_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("target_id", "version", name="pk_price_version"),
    )


def _create_budgets() -> None:
    op.create_table(
        "budget",
        sa.Column("budget_id", sa.String(64), primary_key=True),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("scope_id", sa.String(200), nullable=False),
        sa.Column("period", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("limit_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("on_exhausted", sa.String(16), nullable=False),
        sa.Column("webhook", sa.String(64), nullable=False, server_default=sa.text("''")),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("scope", "scope_id", "period", "kind", name="uq_budget_scope"),
    )
    op.create_table(
        "budget_grant",
        sa.Column("budget_id", sa.String(64), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("granted_nanousd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("budget_id", "boot_id", name="pk_budget_grant"),
    )
    op.create_table(
        "webhook_message",
        sa.Column("message_id", sa.String(200), primary_key=True),
        sa.Column("destination", sa.String(64), nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_try_us", sa.BigInteger(), nullable=True),
        sa.Column("delivered_us", sa.BigInteger(), nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
    )
    op.create_index("ix_webhook_message_due", "webhook_message", ["next_try_us"])


def _create_pools() -> None:
    op.create_table(
        "pool_hour",
        sa.Column("pool", sa.String(64), nullable=False),
        sa.Column("hour_us", sa.BigInteger(), nullable=False),
        sa.Column("replica", sa.String(200), nullable=False),
        sa.Column("up_us", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("pool", "hour_us", "replica", name="pk_pool_hour"),
    )
    op.create_table(
        "true_up",
        sa.Column("pool", sa.String(64), nullable=False),
        sa.Column("day_us", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("bill_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("up_us", sa.BigInteger(), nullable=False),
        sa.Column("busy_us", sa.BigInteger(), nullable=False),
        sa.Column("posted_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pool", "day_us", "revision", name="pk_true_up"),
    )


# What earlier rows tell of the new columns, and the roll-ups of all. A migration stays as it was when the program
# changes, so these statements are its own; they count what `cost.ledger.rollups` counted when they were written.

_DAY_US = 86_400_000_000
_OF_THE_DAY = "at_us >= :from_us AND at_us < :to_us"

# An earlier row has one cost. What of it was input, output or cache can no longer be known: neither the price's figures
# nor the buckets that they applied to were kept with it. All of it stands as the request's own amount, so that the
# meters add up to the cost and no token gets a price that nobody ever paid.
_METERS = (
    f"UPDATE ledger_entry SET request_nanousd = cost_nanousd WHERE {_OF_THE_DAY} "  # noqa: S608  Our own text alone.
    "AND entry <> 'reserve' AND cost_nanousd IS NOT NULL"
)
# Comparisons behind a caller's request were booked under the request's name with an ending.
_ORIGIN = (
    f"UPDATE ledger_entry SET origin = 'shadow' WHERE {_OF_THE_DAY} "  # noqa: S608
    "AND (alias = 'shadow' AND request_id LIKE '%-shadow' OR alias = 'judge' AND request_id LIKE '%-judge')"
)
_NOT_SERVED = (
    "escalated",
    "discarded",
    "orphaned",
    "caller_gone",
    "slow_reader",
    "shutdown",
    "failed",
    "first_token_timeout",
    "upstream_timeout",
    "stream_cut",
    "upstream_error",
)
_SERVED = (
    f"UPDATE ledger_entry SET served = true WHERE {_OF_THE_DAY} "  # noqa: S608
    "AND entry = 'settle' AND origin = 'caller' AND status BETWEEN 200 AND 299"
    + "".join(f" AND flags NOT LIKE '%\"{flag}\"%'" for flag in _NOT_SERVED)
)
# Processes that left something open are looked after like those that will tell of themselves from now on.
_BOOTS = (
    "INSERT INTO boot (boot_id, host, started_us, seen_us) SELECT boot_id, '', min(at_us), max(at_us) "  # noqa: S608
    f"FROM ledger_entry held WHERE {_OF_THE_DAY} AND entry = 'reserve' AND NOT EXISTS (SELECT 1 FROM ledger_entry done "
    "WHERE done.request_id = held.request_id AND done.attempt = held.attempt "
    "AND done.entry IN ('settle', 'void', 'expire')) GROUP BY boot_id "
    "ON CONFLICT (boot_id) DO UPDATE SET seen_us = excluded.seen_us"
)
_KEY = "team_id, organisation_id, key_id, target_id, provider, tier, tag, price_version, pool, origin"
_COUNTS = {
    "requests": "CASE WHEN attempt = 1 AND origin = 'caller' AND entry IN ('settle', 'void', 'expire') THEN 1 ELSE 0 END",
    "attempts": "CASE WHEN entry IN ('settle', 'expire') THEN 1 ELSE 0 END",
    "served": "CASE WHEN served THEN 1 ELSE 0 END",
    "baseline_rows": "CASE WHEN baseline_nanousd IS NULL THEN 0 ELSE 1 END",
    "cheapest_rows": "CASE WHEN cheapest_nanousd IS NULL THEN 0 ELSE 1 END",
    "hosted_rows": "CASE WHEN hosted_nanousd IS NULL THEN 0 ELSE 1 END",
    "unpriced_attempts": "CASE WHEN cost_nanousd IS NULL AND entry IN ('settle', 'expire') THEN 1 ELSE 0 END",
    "estimated_attempts": "CASE WHEN usage_source = 'estimated' AND entry IN ('settle', 'expire') THEN 1 ELSE 0 END",
}
_COUNTED = ", ".join(f"sum({_COUNTS.get(name, f'coalesce({name}, 0)')})" for name in _SUMS)
_HOURS = (
    f"INSERT INTO rollup_hour (start_us, {_KEY}, {', '.join(_SUMS)}) "  # noqa: S608
    f"SELECT at_us - at_us % 3600000000, {_KEY}, {_COUNTED} FROM ledger_entry "
    f"WHERE {_OF_THE_DAY} AND entry <> 'reserve' GROUP BY at_us - at_us % 3600000000, {_KEY}"
)
_OF_ROLLUPS = "WHERE start_us >= :from_us AND start_us < :to_us"
_DAYS = (
    f"INSERT INTO rollup_day (start_us, {_KEY}, {', '.join(_SUMS)}) "  # noqa: S608
    f"SELECT start_us - start_us % {_DAY_US}, {_KEY}, {', '.join(f'sum({name})' for name in _SUMS)} "
    f"FROM rollup_hour {_OF_ROLLUPS} GROUP BY start_us - start_us % {_DAY_US}, {_KEY}"
)
_SPEND = tuple(
    "INSERT INTO spend_day (scope, scope_id, day_us, spent_nanousd) "  # noqa: S608
    f"SELECT '{scope}', {column}, start_us, sum(cost_nanousd) FROM rollup_day {_OF_ROLLUPS} "
    f"AND origin IN ('caller', 'shadow') AND {column} <> '' GROUP BY {column}, start_us"
    for scope, column in (("organisation", "organisation_id"), ("team", "team_id"), ("key", "key_id"))
)


def _fill_in() -> None:
    """Fill in day by day, so that no statement takes too long for the database's limits."""
    connection = op.get_bind()
    after_us = 0
    first = sa.text("SELECT min(at_us) FROM ledger_entry WHERE at_us >= :after_us")
    while (at_us := connection.execute(first, {"after_us": after_us}).scalar()) is not None:
        from_us, after_us = at_us - at_us % _DAY_US, at_us - at_us % _DAY_US + _DAY_US
        for statement in (_METERS, _ORIGIN, _SERVED, _BOOTS, _HOURS, _DAYS, *_SPEND):
            connection.execute(sa.text(statement), {"from_us": from_us, "to_us": after_us})
