"""Organisations, teams, keys and the ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_accounts()
    _create_ledger()


def downgrade() -> None:
    for table in ("ledger_entry", "api_key", "team", "organisation"):
        op.drop_table(table)


def _create_accounts() -> None:
    op.create_table(
        "organisation",
        sa.Column("organisation_id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "team",
        sa.Column("team_id", sa.String(64), primary_key=True),
        sa.Column(
            "organisation_id",
            sa.String(64),
            sa.ForeignKey("organisation.organisation_id", name="fk_team_organisation"),
            nullable=False,
        ),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("allowed_models", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_team_organisation_id", "team", ["organisation_id"])
    op.create_table(
        "api_key",
        sa.Column("key_id", sa.String(64), primary_key=True),
        sa.Column("team_id", sa.String(64), sa.ForeignKey("team.team_id", name="fk_api_key_team"), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("pepper_id", sa.String(32), nullable=False),
        sa.Column("last4", sa.String(4), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.UniqueConstraint("digest", name="uq_api_key_digest"),
    )
    op.create_index("ix_api_key_team_id", "api_key", ["team_id"])


def _create_ledger() -> None:
    op.create_table(
        "ledger_entry",
        sa.Column("request_id", sa.String(200), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("entry", sa.String(16), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("tier", sa.String(32), nullable=False),
        sa.Column("alias", sa.String(200), nullable=False),
        sa.Column("target_id", sa.String(200), nullable=False),
        sa.Column("deployment_id", sa.String(200), nullable=False),
        sa.Column("provider", sa.String(200), nullable=False),
        sa.Column("price_version", sa.String(200), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cache_write_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_nanousd", sa.BigInteger(), nullable=True),
        sa.Column("baseline_nanousd", sa.BigInteger(), nullable=True),
        sa.Column("usage_source", sa.String(16), nullable=False),
        sa.Column("flags", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("complexity", sa.Float(53), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ttft_us", sa.BigInteger(), nullable=True),
        sa.Column("duration_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("request_id", "attempt", "entry", name="pk_ledger_entry"),
    )
    op.create_index("ix_ledger_entry_team_id_at_us", "ledger_entry", ["team_id", "at_us"])
    op.create_index(
        "ix_ledger_entry_reserves",
        "ledger_entry",
        ["boot_id"],
        sqlite_where=sa.text("entry = 'reserve'"),
        postgresql_where=sa.text("entry = 'reserve'"),
    )
