"""Files, batches, their lines and answers."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_file",
        sa.Column("file_id", sa.String(64), primary_key=True),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("filename", sa.String(255), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
    )
    op.create_index("ix_stored_file_expires_us", "stored_file", ["expires_us"])
    op.create_index("ix_stored_file_team", "stored_file", ["team_id", "created_us"])
    op.create_table(
        "batch",
        sa.Column("batch_id", sa.String(64), primary_key=True),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file_id", sa.String(64), nullable=False),
        sa.Column("completion_window", sa.String(16), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=True),
        sa.Column("output_expires_s", sa.Integer(), nullable=True),
        sa.Column("callback_url", sa.String(2000), nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("ending", sa.String(16), nullable=False),
        sa.Column("errors", sa.Text(), nullable=True),
        sa.Column("model", sa.String(200), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("in_progress_us", sa.BigInteger(), nullable=True),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("finalizing_us", sa.BigInteger(), nullable=True),
        sa.Column("completed_us", sa.BigInteger(), nullable=True),
        sa.Column("failed_us", sa.BigInteger(), nullable=True),
        sa.Column("expired_us", sa.BigInteger(), nullable=True),
        sa.Column("cancelling_us", sa.BigInteger(), nullable=True),
        sa.Column("cancelled_us", sa.BigInteger(), nullable=True),
        sa.Column("output_file_id", sa.String(64), nullable=True),
        sa.Column("error_file_id", sa.String(64), nullable=True),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("repeated", sa.Integer(), nullable=False),
        sa.Column("tokens_left", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("unpriced", sa.Integer(), nullable=False),
        sa.Column("bound_nanousd", sa.BigInteger(), nullable=True),
        sa.Column("reserved_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("held_until_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_batch_status", "batch", ["status"])
    op.create_index("ix_batch_team", "batch", ["team_id", "created_us"])
    op.create_table(
        "batch_line",
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("custom_id", sa.String(512), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("bound_nanousd", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("held_until_us", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("error_code", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_batch_line"),
    )
    op.create_index("ix_batch_line_held", "batch_line", ["state", "held_until_us"])
    op.create_index("ix_batch_line_next", "batch_line", ["batch_id", "state", "place"])
    op.create_table(
        "batch_result",
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_batch_result"),
    )


def downgrade() -> None:
    op.drop_table("batch_result")
    op.drop_table("batch_line")
    op.drop_table("batch")
    op.drop_table("stored_file")
