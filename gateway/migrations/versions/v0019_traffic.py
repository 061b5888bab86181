"""Traffic by minute and by quarter of an hour, as workers counted it."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_FIGURES = ("mark", "requests", "errors", "refusals", "output_tokens", "priced_tokens", "cost_nanousd", "waiting")


def upgrade() -> None:
    op.create_table(
        "traffic",
        sa.Column("span", sa.String(8), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _FIGURES),
        sa.Column("ttft", sa.String(1_000), nullable=False),
        sa.PrimaryKeyConstraint("span", "start_us", "boot_id", name="pk_traffic"),
    )


def downgrade() -> None:
    op.drop_table("traffic")
