"""Alerts with thresholds of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alert_rule",
        sa.Column("alert_id", sa.String(64), primary_key=True),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("measure", sa.String(16), nullable=False),
        sa.Column("threshold", sa.BigInteger(), nullable=False),
        sa.Column("window_s", sa.Integer(), nullable=False),
        sa.Column("destination", sa.String(64), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_alert_rule_organisation_id", "alert_rule", ["organisation_id"])


def downgrade() -> None:
    op.drop_index("ix_alert_rule_organisation_id", "alert_rule")
    op.drop_table("alert_rule")
