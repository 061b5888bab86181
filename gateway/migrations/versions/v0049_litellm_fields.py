"""What LiteLLM's clients say of a key, team or person, to be given back."""

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None
OLDER_CODE_SERVES = True


def upgrade() -> None:
    op.create_table(
        "litellm_fields",
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("object_id", sa.String(64), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("fields", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "object_id", name="pk_litellm_fields"),
    )


def downgrade() -> None:
    op.drop_table("litellm_fields")
