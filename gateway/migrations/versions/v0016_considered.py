"""The figures by which a request's targets were compared, so that its page can tell why one was chosen."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ledger_entry", sa.Column("considered", sa.Text(), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    op.drop_column("ledger_entry", "considered")
