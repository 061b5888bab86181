"""The end user that a request names, in ledger entries."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_NAMED = sa.text("end_user <> ''")


def upgrade() -> None:
    op.add_column("ledger_entry", sa.Column("end_user", sa.String(64), nullable=False, server_default=sa.text("''")))
    op.create_index(
        "ix_ledger_entry_end_user",
        "ledger_entry",
        ["organisation_id", "end_user", "at_us"],
        sqlite_where=_NAMED,
        postgresql_where=_NAMED,
    )


def downgrade() -> None:
    op.drop_index("ix_ledger_entry_end_user", "ledger_entry")
    op.drop_column("ledger_entry", "end_user")
