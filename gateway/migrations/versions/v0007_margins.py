"""The margins by which an attempt's target was compared, beside its cost."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ledger_entry", sa.Column("margin_nanousd", sa.BigInteger(), nullable=True))
    op.add_column("ledger_entry", sa.Column("margin_why", sa.String(16), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    op.drop_column("ledger_entry", "margin_why")
    op.drop_column("ledger_entry", "margin_nanousd")
