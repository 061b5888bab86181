"""A team's wish to have its answers kept and given again."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None
OLDER_CODE_SERVES = True


def upgrade() -> None:
    op.add_column("team", sa.Column("cache", sa.String(16), nullable=False, server_default="default"))
    op.add_column("team", sa.Column("cache_ttl_s", sa.Integer(), nullable=True))
    op.add_column("team", sa.Column("cache_epoch", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    for name in ("cache_epoch", "cache_ttl_s", "cache"):
        op.drop_column("team", name)
