"""Incidents with those whom they hurt, and the counts of requests that ill targets hurt."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "hurt_count",
        sa.Column("span", sa.String(8), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("targets", sa.String(500), nullable=False),
        sa.Column("fate", sa.String(16), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "span", "start_us", "boot_id", "organisation_id", "team_id", "key_id", "model", "targets", "fate",
            name="pk_hurt_count",
        ),
    )  # fmt: skip
    op.create_index("ix_hurt_count_start_us", "hurt_count", ["start_us"])
    op.create_table(
        "incident",
        sa.Column("incident_id", sa.String(64), primary_key=True),
        sa.Column("place", sa.String(300), nullable=False),
        sa.Column("places", sa.Text(), nullable=False),
        sa.Column("targets", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("severity", sa.String(8), nullable=False),
        sa.Column("subject", sa.String(300), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("advice", sa.Text(), nullable=False),
        sa.Column("href", sa.String(500), nullable=False),
        sa.Column("also", sa.Text(), nullable=False),
        sa.Column("opened_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_by", sa.String(64), nullable=False),
        sa.Column("closed_us", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=True),
        sa.Column("refused", sa.BigInteger(), nullable=True),
        sa.Column("teams", sa.Integer(), nullable=True),
        sa.Column("keys", sa.Integer(), nullable=True),
        sa.Column("part_of", sa.String(64), nullable=False),
    )
    op.create_index("ix_incident_closed_us", "incident", ["closed_us"])
    op.create_table(
        "incident_share",
        sa.Column("incident_id", sa.String(64), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("incident_id", "organisation_id", "team_id", "model", name="pk_incident_share"),
    )
    op.create_index("ix_incident_share_team_id", "incident_share", ["team_id"])


def downgrade() -> None:
    for table in ("incident_share", "incident", "hurt_count"):
        op.drop_table(table)
