"""When a caller had the first token, and what the request waited for before."""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

_NAMES = ("began_us", "queued_us", "given_us")


def upgrade() -> None:
    for name in _NAMES:
        op.add_column("ledger_entry", sa.Column(name, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for name in _NAMES:
        op.drop_column("ledger_entry", name)
