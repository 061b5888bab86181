"""Months of the ledger that stand in files: where they are, and each file with its sums."""

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None
# The version before writes and reads as ever; but its `ledger verify` and `ledger rebuild` know nothing of files, so no month is to be
# archived before all processes are of this one (docs/books.md).
OLDER_CODE_SERVES = True


def upgrade() -> None:
    op.create_table(
        "archived_month",
        sa.Column("month_us", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("held_until_us", sa.BigInteger(), nullable=False),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("month_us"),
    )
    op.create_table(
        "archived_file",
        sa.Column("month_us", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("day_us", sa.BigInteger(), nullable=False),
        sa.Column("last_key", sa.Text(), nullable=False),
        sa.Column("sums", sa.Text(), nullable=False),
        sa.Column("is_gone", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("month_us", "number", name="pk_archived_file"),
    )
    op.create_index("ix_archived_file_day_us", "archived_file", ["day_us"])


def downgrade() -> None:
    op.drop_table("archived_file")
    op.drop_table("archived_month")
