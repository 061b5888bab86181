"""Responses that are kept for their callers, sealed."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_response",
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("response_id", sa.String(80), nullable=False),
        sa.Column("pepper_id", sa.String(64), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("team_id", "response_id", name="pk_stored_response"),
    )
    op.create_index("ix_stored_response_expires_us", "stored_response", ["expires_us"])
    op.create_index("ix_stored_response_team_created", "stored_response", ["team_id", "created_us"])


def downgrade() -> None:
    op.drop_table("stored_response")
