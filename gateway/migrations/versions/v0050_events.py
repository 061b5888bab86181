"""Events about entries: what sinks are to be told of, how far each was told, and which process tells them."""

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None
OLDER_CODE_SERVES = True


def upgrade() -> None:
    op.create_table(
        "event_stream",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("held_until_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "event_outbox",
        sa.Column("request_id", sa.String(200), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("entry", sa.String(16), nullable=False),
        sa.Column("written_us", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("request_id", "attempt", "entry", name="pk_event_outbox"),
    )
    op.create_index("ix_event_outbox_sequence", "event_outbox", ["sequence"], unique=True)
    op.create_index(
        "ix_event_outbox_unnumbered",
        "event_outbox",
        ["written_us"],
        sqlite_where=sa.text("sequence IS NULL"),
        postgresql_where=sa.text("sequence IS NULL"),
    )
    op.create_table(
        "event_sink",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("moved_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    op.drop_table("event_sink")
    op.drop_table("event_outbox")
    op.drop_table("event_stream")
