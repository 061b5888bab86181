"""Lines that were handed over to providers' own batch APIs."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "handed_batch",
        sa.Column("handed_id", sa.String(64), primary_key=True),
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("target_id", sa.String(200), nullable=False),
        sa.Column("deployment_id", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("upstream_id", sa.String(200), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("lines_left", sa.Integer(), nullable=False),
        sa.Column("tokens_left", sa.BigInteger(), nullable=False),
        sa.Column("tokens_answered", sa.BigInteger(), nullable=False),
        sa.Column("answered", sa.Integer(), nullable=False),
        sa.Column("unneeded", sa.Integer(), nullable=False),
        sa.Column("estimated", sa.Integer(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("give_up_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("look_us", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("held_until_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_handed_batch_batch_id", "handed_batch", ["batch_id"])
    op.create_index("ix_handed_batch_look", "handed_batch", ["state", "look_us"])


def downgrade() -> None:
    op.drop_table("handed_batch")
