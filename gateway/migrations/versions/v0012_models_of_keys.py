"""A key may be for some of its team's models only."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("models", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("api_key", "models")
