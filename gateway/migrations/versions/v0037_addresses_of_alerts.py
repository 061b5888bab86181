"""Alerts that are sent to an address of the team's own."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("alert_rule", sa.Column("address", sa.String(2_000), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    op.drop_column("alert_rule", "address")
