"""Closing months: what was compared, ticked and signed, and what came later."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_ID = 200


def upgrade() -> None:
    op.create_table(
        "closed_month",
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("end_us", sa.BigInteger(), nullable=False),
        sa.Column("closed_us", sa.BigInteger(), nullable=False),
        sa.Column("closed_by", sa.String(_ID), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("figures", sa.Text(), nullable=False),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "start_us", name="pk_closed_month"),
    )
    op.create_table(
        "month_mark",
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.String(_ID), nullable=False),
        sa.Column("ticked", sa.Boolean(), nullable=False),
        sa.Column("said", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("marked_by", sa.String(_ID), nullable=False),
        sa.Column("marked_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "start_us", "step", name="pk_month_mark"),
    )
    op.create_table(
        "compared_day",
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("day_us", sa.BigInteger(), nullable=False),
        sa.Column("provider", sa.String(_ID), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("compared_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "day_us", "provider", name="pk_compared_day"),
    )
    op.create_table(
        "late_posting",
        sa.Column("request_id", sa.String(_ID), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("entry", sa.String(16), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("day_us", sa.BigInteger(), nullable=False),
        sa.Column("posted_at_us", sa.BigInteger(), nullable=False),
        sa.Column("pool", sa.String(64), nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("cost_nanousd", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("request_id", "attempt", "entry", name="pk_late_posting"),
    )
    op.create_index("ix_late_posting_organisation_id_at_us", "late_posting", ["organisation_id", "at_us"])
    op.create_index("ix_late_posting_organisation_id_posted_at_us", "late_posting", ["organisation_id", "posted_at_us"])
    op.create_index("ix_late_posting_pool_day_us", "late_posting", ["pool", "day_us"])


def downgrade() -> None:
    for name in ("late_posting", "compared_day", "month_mark", "closed_month"):
        op.drop_table(name)
