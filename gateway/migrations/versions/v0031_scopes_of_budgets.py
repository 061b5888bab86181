"""Budgets of end users, models and providers, and limits of end users: wider ids, and the daily spend of each from the books."""

from datetime import UTC, date, datetime, timedelta
from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_WIDENED: Final = (
    ("spend_day", "scope_id", 200, 265),
    ("budget", "scope_id", 200, 265),
    ("budget_grant", "budget_id", 64, 330),
    ("limit_rule", "scope_id", 64, 129),
)
_ORIGINS: Final = "('caller', 'shadow', 'correction', 'reconciliation')"
_ROLLED_UP: Final = {
    "model": ("organisation_id", "target_id"),
    "provider": ("organisation_id", "provider"),
    "team_model": ("team_id", "target_id"),
    "team_provider": ("team_id", "provider"),
}
_DAY_US: Final = 86_400_000_000


def upgrade() -> None:
    for table, column, old, new in _WIDENED:
        _resize(table, column, old, new)
    op.create_index("ix_spend_day_day_us", "spend_day", ["day_us"])
    op.create_table(
        "end_user_month",
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("month_us", sa.BigInteger(), nullable=False),
        sa.Column("end_user", sa.String(64), nullable=False),
        sa.Column("spent_nanousd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("team_id", "month_us", "end_user", name="pk_end_user_month"),
    )
    op.create_index("ix_end_user_month_spent", "end_user_month", ["team_id", "month_us", "spent_nanousd"])
    for scope, (owner, value) in _ROLLED_UP.items():
        op.execute(
            "INSERT INTO spend_day (scope, scope_id, day_us, spent_nanousd) "  # noqa: S608  Our own names.
            f"SELECT '{scope}', {owner} || '/' || {value}, start_us, sum(cost_nanousd) FROM rollup_day "
            f"WHERE {value} <> '' AND origin IN {_ORIGINS} GROUP BY {owner}, {value}, start_us"
        )
    # The few that named an end user have an index of their own.
    op.execute(
        "INSERT INTO spend_day (scope, scope_id, day_us, spent_nanousd) "  # noqa: S608  Our own names.
        f"SELECT 'end_user', team_id || '/' || end_user, at_us - at_us % {_DAY_US}, sum(coalesce(cost_nanousd, 0)) "
        f"FROM ledger_entry WHERE end_user <> '' AND entry <> 'reserve' AND origin IN {_ORIGINS} "
        f"GROUP BY team_id, end_user, at_us - at_us % {_DAY_US}"
    )
    first_us = op.get_bind().scalar(sa.text("SELECT min(at_us) FROM ledger_entry WHERE end_user <> ''"))
    day = None if first_us is None else datetime.fromtimestamp(first_us / 1_000_000, UTC).date().replace(day=1)
    while day is not None and day <= datetime.now(UTC).date():
        after = (day + timedelta(days=31)).replace(day=1)
        op.execute(
            "INSERT INTO end_user_month (team_id, month_us, end_user, spent_nanousd) "  # noqa: S608  Our own names.
            f"SELECT team_id, {_us(day)}, end_user, sum(coalesce(cost_nanousd, 0)) FROM ledger_entry "
            f"WHERE end_user <> '' AND entry <> 'reserve' AND origin IN {_ORIGINS} "
            f"AND at_us >= {_us(day)} AND at_us < {_us(after)} GROUP BY team_id, end_user"
        )
        day = after


def _us(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000


def downgrade() -> None:
    op.drop_table("end_user_month")
    op.drop_index("ix_spend_day_day_us", "spend_day")
    gone = ", ".join(f"'{scope}'" for scope in ("end_user", *_ROLLED_UP))
    op.execute(
        f"DELETE FROM budget_grant WHERE budget_id LIKE '%/%' "  # noqa: S608  Our own names.
        f"OR budget_id IN (SELECT budget_id FROM budget WHERE scope IN ({gone}))"
    )
    for table in ("budget", "spend_day"):
        op.execute(f"DELETE FROM {table} WHERE scope IN ({gone})")  # noqa: S608  Our own names.
    op.execute("DELETE FROM limit_rule WHERE scope = 'end_user'")
    for table, column, old, new in reversed(_WIDENED):
        _resize(table, column, new, old)


def _resize(table: str, column: str, old: int, new: int) -> None:
    # SQLite makes the table anew.
    with op.batch_alter_table(table) as changed:
        changed.alter_column(column, existing_type=sa.String(old), type_=sa.String(new), existing_nullable=False)
