"""Limits that people set, the processes that live, idempotent requests; a team's weight and whether it may spill over."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The database's own defaults are what a team gets that was made before it could choose.
    op.add_column("team", sa.Column("weight", sa.Float(53), nullable=False, server_default="1"))
    op.add_column("team", sa.Column("spill_over", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.create_table(
        "limit_rule",
        sa.Column("scope", sa.String(16), primary_key=True),
        sa.Column("scope_id", sa.String(64), primary_key=True),
        sa.Column("model", sa.String(128), primary_key=True),
        sa.Column("requests_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("request_burst", sa.BigInteger(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("token_burst", sa.BigInteger(), nullable=True),
        sa.Column("concurrency", sa.Integer(), nullable=True),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "replica",
        sa.Column("boot_id", sa.String(64), primary_key=True),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "idempotent_request",
        sa.Column("team_id", sa.String(64), primary_key=True),
        sa.Column("key_digest", sa.String(64), primary_key=True),
        sa.Column("body_digest", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("claimed_until_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_idempotent_request_expires_us", "idempotent_request", ["expires_us"])
    op.create_index("ix_idempotent_request_boot_id", "idempotent_request", ["boot_id"])


def downgrade() -> None:
    for table in ("idempotent_request", "replica", "limit_rule"):
        op.drop_table(table)
    op.drop_column("team", "spill_over")
    op.drop_column("team", "weight")
