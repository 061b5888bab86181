"""Measurements of targets with the calibration set, and the answers to its questions."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "measurement",
        sa.Column("measurement_id", sa.String(64), primary_key=True),
        sa.Column("target_id", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("questions", sa.Integer(), nullable=False),
        sa.Column("budget_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("at_once", sa.Integer(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("ordered_us", sa.BigInteger(), nullable=False),
        sa.Column("ordered_by", sa.String(200), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("touched_us", sa.BigInteger(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("tuning_version", sa.Integer(), nullable=True),
    )
    op.create_index("ix_measurement_state", "measurement", ["state"])
    op.create_table(
        "calibration_answer",
        sa.Column("measurement_id", sa.String(64), nullable=False),
        sa.Column("question_id", sa.String(200), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("said", sa.Text(), nullable=False),
        sa.Column("cost_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("ttft_us", sa.BigInteger(), nullable=True),
        sa.Column("tpot_us", sa.BigInteger(), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("estimated_tokens", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("measurement_id", "question_id", name="pk_calibration_answer"),
    )


def downgrade() -> None:
    op.drop_table("calibration_answer")
    op.drop_table("measurement")
