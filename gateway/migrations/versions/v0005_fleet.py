"""Our own engines: who registered, who is drained, whose hours were counted, how many there should be, prompts' habits."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "registered_replica",
        sa.Column("pool", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("url", sa.String(2048), nullable=False),
        sa.Column("instance", sa.String(64), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("registered_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "drain_order",
        sa.Column("pool", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("ordered_us", sa.BigInteger(), nullable=False),
        sa.Column("ordered_by", sa.String(64), nullable=False),
    )
    op.create_table(
        "replica_clock",
        sa.Column("pool", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("counted_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "pool_target",
        sa.Column("pool", sa.String(64), primary_key=True),
        sa.Column("desired", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("decided_us", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("lease_until_us", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
    )
    op.create_table(
        "prompt_habit",
        sa.Column("day_us", sa.BigInteger(), primary_key=True),
        sa.Column("team_id", sa.String(64), primary_key=True),
        sa.Column("target_id", sa.String(128), primary_key=True),
        sa.Column("skeleton", sa.String(32), primary_key=True),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("broken", sa.BigInteger(), nullable=False),
        sa.Column("broken_tokens", sa.BigInteger(), nullable=False),
        sa.Column("first_break_tokens", sa.BigInteger(), nullable=False),
        sa.Column("kinds", sa.String(128), nullable=False),
    )


def downgrade() -> None:
    for table in ("prompt_habit", "pool_target", "replica_clock", "drain_order", "registered_replica"):
        op.drop_table(table)
