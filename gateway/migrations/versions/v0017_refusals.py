"""Refusals by minute and hour, as workers counted them."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = ("span", "start_us", "boot_id", "organisation_id", "team_id", "key_id", "model", "reason", "status")
    op.create_table(
        "refusal_count",
        sa.Column("span", sa.String(8), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("refusals", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(*key, name="pk_refusal_count"),
    )
    op.create_index("ix_refusal_count_team_id_start_us", "refusal_count", ["team_id", "start_us"])


def downgrade() -> None:
    op.drop_table("refusal_count")
