"""Keys and teams that are blocked for now; budgets that are raised for a while, topped up, or cut by an organisation's calendar."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_BLOCKED = ("api_key", "team")
_OF_BUDGETS = ("raised_nanousd", "raised_until_us", "opening_nanousd")
_KEY = "CASE WHEN key_id LIKE '%.%' THEN substr(key_id, 1, 16) ELSE key_id END"
_SCOPES = {
    "organisation": "organisation_id",
    "team": "team_id",
    "key": _KEY,
    "tag": "organisation_id || '/' || tag",
    "model": "organisation_id || '/' || target_id",
    "provider": "organisation_id || '/' || provider",
    "team_model": "team_id || '/' || target_id",
    "team_provider": "team_id || '/' || provider",
}
_GIVEN = {
    "organisation": "organisation_id",
    "team": "team_id",
    "key": "key_id",
    "tag": "tag",
    "model": "target_id",
    "provider": "provider",
    "team_model": "target_id",
    "team_provider": "provider",
}
_FILL = (
    "INSERT INTO spend_quarter (scope, scope_id, start_us, spent_nanousd) "
    "SELECT '{scope}', {scope_id}, start_us, sum(cost_nanousd) FROM rollup_hour "
    "WHERE origin IN ('caller', 'shadow', 'correction', 'reconciliation') AND {given} <> '' GROUP BY {scope_id}, start_us"
)

_FILL_END_USERS = (
    "INSERT INTO spend_quarter (scope, scope_id, start_us, spent_nanousd) "
    "SELECT 'end_user', team_id || '/' || end_user, at_us - at_us % 900000000, sum(coalesce(cost_nanousd, 0)) "
    "FROM ledger_entry WHERE end_user <> '' AND entry <> 'reserve' "
    "AND origin IN ('caller', 'shadow', 'correction', 'reconciliation') "
    "GROUP BY team_id, end_user, at_us - at_us % 900000000"
)


def upgrade() -> None:
    for table in _BLOCKED:
        op.add_column(table, sa.Column("blocked_at", sa.DateTime(timezone=True), nullable=True))
    for name in _OF_BUDGETS:
        op.add_column("budget", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "budget_topup",
        sa.Column("budget_id", sa.String(64), nullable=False),
        sa.Column("topup_id", sa.String(64), nullable=False),
        sa.Column("amount_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.String(200), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("budget_id", "topup_id", name="pk_budget_topup"),
    )
    op.create_table(
        "calendar",
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("from_us", sa.BigInteger(), nullable=False),
        sa.Column("time_zone", sa.String(64), nullable=False),
        sa.Column("week_start", sa.String(16), nullable=False),
        sa.Column("set_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "from_us", name="pk_calendar"),
    )
    op.create_table(
        "spend_quarter",
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("scope_id", sa.String(265), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("spent_nanousd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "scope_id", "start_us", name="pk_spend_quarter"),
    )
    op.create_index("ix_spend_quarter_start_us", "spend_quarter", ["start_us"])
    # Of the past an hour's first quarter has all of it: that is exact wherever clocks differ by whole hours.
    for scope, scope_id in _SCOPES.items():
        op.execute(_FILL.format(scope=scope, scope_id=scope_id, given=_GIVEN[scope]))
    op.execute(_FILL_END_USERS)


def downgrade() -> None:
    for table in ("spend_quarter", "calendar", "budget_topup"):
        op.drop_table(table)
    for name in _OF_BUDGETS:
        op.drop_column("budget", name)
    for table in _BLOCKED:
        op.drop_column(table, "blocked_at")
