"""Audit entries that personal data may be taken out of: their salt, and the entry that vouches for what is left."""

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None
OLDER_CODE_SERVES = True


def upgrade() -> None:
    op.add_column("audit_entry", sa.Column("salt", sa.String(32), nullable=False, server_default=sa.text("''")))
    op.add_column("audit_entry", sa.Column("redacted", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("audit_entry", "redacted")
    op.drop_column("audit_entry", "salt")
