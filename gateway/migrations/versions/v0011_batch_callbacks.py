"""Callbacks of batches: messages to addresses that callers gave, teams' signing secrets, and what a batch was estimated at."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batch", sa.Column("tokens", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.add_column("batch", sa.Column("estimated_us", sa.BigInteger(), nullable=True))
    op.add_column("webhook_message", sa.Column("url", sa.String(2000), nullable=True))
    op.add_column("webhook_message", sa.Column("team_id", sa.String(64), nullable=True))
    op.create_table(
        "callback_secret",
        sa.Column("team_id", sa.String(64), primary_key=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("rotated_us", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("callback_secret")
    op.drop_column("webhook_message", "team_id")
    op.drop_column("webhook_message", "url")
    op.drop_column("batch", "estimated_us")
    op.drop_column("batch", "tokens")
