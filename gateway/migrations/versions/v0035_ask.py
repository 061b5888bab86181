"""Questions in words: whose usage they are booked to, and how many each person asked in an hour."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ask_setting",
        sa.Column("organisation_id", sa.String(64), primary_key=True),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("questions_an_hour", sa.Integer(), nullable=False),
        sa.Column("set_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "ask_count",
        sa.Column("organisation_id", sa.String(64), primary_key=True),
        sa.Column("principal", sa.String(80), primary_key=True),
        sa.Column("hour_us", sa.BigInteger(), primary_key=True),
        sa.Column("questions", sa.Integer(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("ask_count")
    op.drop_table("ask_setting")
