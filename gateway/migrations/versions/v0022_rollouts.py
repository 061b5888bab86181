"""Versions of models, their rollouts, and which version served an attempt."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_EMPTY = sa.text("''")
_VERSIONED = sa.text("version <> ''")


def upgrade() -> None:
    op.create_table(
        "model_version",
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("added_us", sa.BigInteger(), nullable=False),
        sa.Column("added_by", sa.String(64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("model", "version"),
    )
    op.create_table(
        "rollout",
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("pool", sa.String(64), nullable=False),
        sa.Column("stable", sa.String(64), nullable=False),
        sa.Column("candidate", sa.String(64), nullable=False),
        sa.Column("share_ppm", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.Column("changed_by", sa.String(64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("model"),
    )
    op.add_column("registered_replica", sa.Column("version", sa.String(64), nullable=False, server_default=_EMPTY))
    op.add_column("ledger_entry", sa.Column("version", sa.String(64), nullable=False, server_default=_EMPTY))
    op.create_index(
        "ix_ledger_entry_version",
        "ledger_entry",
        ["target_id", "at_us"],
        sqlite_where=_VERSIONED,
        postgresql_where=_VERSIONED,
    )


def downgrade() -> None:
    op.drop_index("ix_ledger_entry_version", "ledger_entry")
    op.drop_column("ledger_entry", "version")
    op.drop_column("registered_replica", "version")
    op.drop_table("rollout")
    op.drop_table("model_version")
