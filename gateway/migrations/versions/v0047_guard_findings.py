"""What the guard found, as counts by hour, and the latest requests in which it found something."""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0044"
branch_labels = None
depends_on = None
OLDER_CODE_SERVES = True


def upgrade() -> None:
    op.create_table(
        "guard_finding",
        sa.Column("span", sa.String(8), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("label", sa.String(64), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("side", sa.String(8), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("findings", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "span",
            "start_us",
            "boot_id",
            "organisation_id",
            "team_id",
            "name",
            "label",
            "action",
            "side",
            name="pk_guard_finding",
        ),
    )
    op.create_index("ix_guard_finding_organisation_id_start_us", "guard_finding", ["organisation_id", "start_us"])
    op.create_index("ix_guard_finding_team_id_start_us", "guard_finding", ["team_id", "start_us"])
    op.create_table(
        "guarded_request",
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(200), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("findings", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("team_id", "request_id", name="pk_guarded_request"),
    )
    op.create_index("ix_guarded_request_team_id_at_us", "guarded_request", ["team_id", "at_us"])


def downgrade() -> None:
    op.drop_table("guarded_request")
    op.drop_table("guard_finding")
