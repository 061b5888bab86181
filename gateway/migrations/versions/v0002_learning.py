"""Teams' chosen settings, and the tables that learning reads and writes."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_SETTINGS = ("quality_floor", "escalation", "learning", "shadow_share")


def upgrade() -> None:
    _add_settings()
    _create_weighing()
    _create_verdict()
    _create_tuning()


def downgrade() -> None:
    for table in ("tuning", "verdict", "weighing"):
        op.drop_table(table)
    for name in reversed(_SETTINGS):
        op.drop_column("team", name)


def _add_settings() -> None:
    # Plain ALTERs, also on SQLite: copying the table would break the keys that refer to it.
    op.add_column("team", sa.Column("quality_floor", sa.Float(53), nullable=True))
    op.add_column("team", sa.Column("escalation", sa.String(16), nullable=False, server_default="off"))
    op.add_column("team", sa.Column("learning", sa.String(16), nullable=False, server_default="numbers"))
    op.add_column("team", sa.Column("shadow_share", sa.Float(53), nullable=False, server_default="0"))


def _create_weighing() -> None:
    op.create_table(
        "weighing",
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(200), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("target_id", sa.String(200), nullable=False),
        sa.Column("artifact", sa.String(200), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("complexity", sa.Float(53), nullable=False),
        sa.Column("group_id", sa.String(200), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_nanousd", sa.BigInteger(), nullable=True),
        sa.Column("conversation", sa.String(64), nullable=False),
        sa.Column("request_digest", sa.String(64), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("team_id", "request_id", name="pk_weighing"),
    )
    op.create_index("ix_weighing_at_us", "weighing", ["at_us"])
    op.create_index("ix_weighing_team_id_at_us", "weighing", ["team_id", "at_us"])
    op.create_index(
        "ix_weighing_texts",
        "weighing",
        ["team_id"],
        sqlite_where=sa.text("prompt IS NOT NULL"),
        postgresql_where=sa.text("prompt IS NOT NULL"),
    )


def _create_verdict() -> None:
    op.create_table(
        "verdict",
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(200), nullable=False),
        sa.Column("target_id", sa.String(200), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("signal", sa.String(64), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("adequate", sa.Float(53), nullable=False),
        sa.Column("weight", sa.Float(53), nullable=False),
        sa.Column("better_target", sa.String(200), nullable=True),
        sa.PrimaryKeyConstraint("team_id", "request_id", "target_id", "source", "signal", name="pk_verdict"),
    )
    op.create_index("ix_verdict_at_us", "verdict", ["at_us"])


def _create_tuning() -> None:
    op.create_table(
        "tuning",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("artifact", sa.String(200), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("version"),
    )
