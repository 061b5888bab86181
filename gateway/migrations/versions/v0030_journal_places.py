"""The place up to which the database has each process's journal."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "journal_place",
        sa.Column("boot_id", sa.String(64), primary_key=True),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("segment", "position", "lines", "total", "moved_us")
        ),
    )


def downgrade() -> None:
    op.drop_table("journal_place")
