"""The expected length of an answer to each request, so that targets' own lengths can be compared with it."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("weighing", sa.Column("usual_tokens", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("weighing", "usual_tokens")
