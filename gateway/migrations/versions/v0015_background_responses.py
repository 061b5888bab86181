"""Responses that are made in the background, and their events."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "background_response",
        sa.Column("response_id", sa.String(80), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("streams", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("held_until_us", sa.BigInteger(), nullable=False),
        sa.Column("pepper_id", sa.String(64), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("response_id", name="pk_background_response"),
    )
    op.create_index("ix_background_response_state", "background_response", ["state", "held_until_us"])
    op.create_index("ix_background_response_team", "background_response", ["team_id", "state"])
    op.create_table(
        "background_events",
        sa.Column("response_id", sa.String(80), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("pepper_id", sa.String(64), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("response_id", "first", name="pk_background_events"),
    )


def downgrade() -> None:
    op.drop_table("background_events")
    op.drop_table("background_response")
