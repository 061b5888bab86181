"""The latest refused requests of each team, as rows."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "refused_request",
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(200), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("message", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("team_id", "request_id", name="pk_refused_request"),
    )
    op.create_index("ix_refused_request_team_id_at_us", "refused_request", ["team_id", "at_us"])


def downgrade() -> None:
    op.drop_index("ix_refused_request_team_id_at_us", "refused_request")
    op.drop_table("refused_request")
