"""The end user of a refused request, and the searches that people keep."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("refused_request", sa.Column("end_user", sa.String(64), nullable=False, server_default=sa.text("''")))
    op.create_table(
        "saved_view",
        sa.Column("person_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("query", sa.String(1000), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("person_id", "team_id", "name", name="pk_saved_view"),
    )


def downgrade() -> None:
    op.drop_table("saved_view")
    op.drop_column("refused_request", "end_user")
