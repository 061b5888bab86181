"""What upstreams told beyond the possible, as a figure of its own in the ledger and in the roll-ups."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_TABLES = ("ledger_entry", "rollup_hour", "rollup_day")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("disputed_nanousd", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "disputed_nanousd")
