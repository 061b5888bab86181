"""What was lost of providers' prompt caches, by team, day, target and cause."""

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None
OLDER_CODE_SERVES = True


def upgrade() -> None:
    op.create_table(
        "prompt_cache_loss",
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("day_us", sa.BigInteger(), nullable=False),
        sa.Column("target_id", sa.String(128), nullable=False),
        sa.Column("cause", sa.String(16), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("nanousd", sa.BigInteger(), nullable=False),
        sa.Column("unpriced", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("team_id", "day_us", "target_id", "cause", name="pk_prompt_cache_loss"),
    )


def downgrade() -> None:
    op.drop_table("prompt_cache_loss")
