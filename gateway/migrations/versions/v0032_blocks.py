"""Keys and teams that are blocked for now."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0030"
branch_labels = None
depends_on = None

_BLOCKED = ("api_key", "team")


def upgrade() -> None:
    for table in _BLOCKED:
        op.add_column(table, sa.Column("blocked_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    for table in _BLOCKED:
        with op.batch_alter_table(table) as batch:
            batch.drop_column("blocked_at")
