"""The day on which a key was last used to read or to change, which no roll-up tells."""

import sqlalchemy as sa
from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None
OLDER_CODE_SERVES = True


def upgrade() -> None:
    op.add_column("api_key", sa.Column("read_day_us", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("api_key", "read_day_us")
