"""The savings of the tier batch, as a figure of its own in the ledger and in the roll-ups."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_TABLES = ("ledger_entry", "rollup_hour", "rollup_day")


def upgrade() -> None:
    op.add_column("batch", sa.Column("saved_nanousd", sa.BigInteger(), nullable=False, server_default="0"))
    for table in _TABLES:
        op.add_column(table, sa.Column("batch_saved_nanousd", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("batch", "saved_nanousd")
    for table in _TABLES:
        op.drop_column(table, "batch_saved_nanousd")
