"""Keys and teams that are blocked for now; budgets that are raised for a while, topped up, or cut by an organisation's calendar."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0030"
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
}
_GIVEN = {"organisation": "organisation_id", "team": "team_id", "key": "key_id", "tag": "tag"}
_FILL = (
    "INSERT INTO spend_quarter (scope, scope_id, start_us, spent_nanousd) "
    "SELECT '{scope}', {scope_id}, start_us, sum(cost_nanousd) FROM rollup_hour "
    "WHERE origin IN ('caller', 'shadow', 'correction', 'reconciliation') AND {given} <> '' GROUP BY {scope_id}, start_us"
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
        sa.Column("scope_id", sa.String(200), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("spent_nanousd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "scope_id", "start_us", name="pk_spend_quarter"),
    )
    # Of the past an hour's first quarter has all of it: that is exact wherever clocks differ by whole hours.
    for scope, scope_id in _SCOPES.items():
        op.execute(_FILL.format(scope=scope, scope_id=scope_id, given=_GIVEN[scope]))


def downgrade() -> None:
    for table in ("spend_quarter", "calendar", "budget_topup"):
        op.drop_table(table)
    with op.batch_alter_table("budget") as batch:
        for name in _OF_BUDGETS:
            batch.drop_column(name)
    for table in _BLOCKED:
        with op.batch_alter_table(table) as batch:
            batch.drop_column("blocked_at")
