"""People, their places in teams and their sessions; the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "person",
        sa.Column("person_id", sa.String(64), primary_key=True),
        sa.Column(
            "organisation_id",
            sa.String(64),
            sa.ForeignKey("organisation.organisation_id", name="fk_person_organisation"),
            nullable=False,
        ),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(16), nullable=False, server_default=sa.text("''")),
        sa.Column("password", sa.Text(), nullable=True),
        sa.Column("issuer", sa.String(200), nullable=True),
        sa.Column("subject", sa.String(255), nullable=True),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("signed_in_at", sa.DateTime(timezone=True), nullable=True),
        sa.UniqueConstraint("email", name="uq_person_email"),
        sa.UniqueConstraint("issuer", "subject", name="uq_person_subject"),
    )
    op.create_index("ix_person_organisation_id", "person", ["organisation_id"])
    op.create_table(
        "team_member",
        sa.Column(
            "person_id",
            sa.String(64),
            sa.ForeignKey("person.person_id", name="fk_team_member_person"),
            nullable=False,
        ),
        sa.Column("team_id", sa.String(64), sa.ForeignKey("team.team_id", name="fk_team_member_team"), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("person_id", "team_id", name="pk_team_member"),
    )
    op.create_index("ix_team_member_team_id", "team_member", ["team_id"])
    op.create_table(
        "session",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column(
            "person_id", sa.String(64), sa.ForeignKey("person.person_id", name="fk_session_person"), nullable=False
        ),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.Column("via", sa.String(16), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("agent", sa.String(200), nullable=False),
    )
    op.create_index("ix_session_person_id", "session", ["person_id"])
    op.create_index("ix_session_expires_us", "session", ["expires_us"])
    op.create_table(
        "one_time_link",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column(
            "person_id",
            sa.String(64),
            sa.ForeignKey("person.person_id", name="fk_one_time_link_person"),
            nullable=False,
        ),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.Column("used_us", sa.BigInteger(), nullable=True),
    )
    op.create_index("ix_one_time_link_person_id", "one_time_link", ["person_id"])
    op.create_table(
        "sign_in_failure",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_us", sa.BigInteger(), nullable=False),
        sa.Column("locked_until_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "audit_entry",
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("actor_kind", sa.String(16), nullable=False),
        sa.Column("actor_id", sa.String(200), nullable=False),
        sa.Column("actor_name", sa.String(200), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("object_kind", sa.String(32), nullable=False),
        sa.Column("object_id", sa.String(200), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("previous_hash", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_index("ix_audit_entry_organisation_id_number", "audit_entry", ["organisation_id", "number"])
    op.create_index("ix_audit_entry_team_id_number", "audit_entry", ["team_id", "number"])
    op.create_index("ix_audit_entry_organisation_id_at_us", "audit_entry", ["organisation_id", "at_us", "number"])
    head = op.create_table(
        "audit_head",
        sa.Column("only", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.bulk_insert(head, [{"only": 1, "number": 0, "hash": "0" * 64}])
    _index_arms(["at_us", "organisation_id", "team_id", "arm", "request_id", "entry", "cost_nanousd"])


def _index_arms(columns: list[str]) -> None:
    op.drop_index("ix_ledger_entry_arm", "ledger_entry")
    chosen = sa.text("arm <> ''")
    op.create_index("ix_ledger_entry_arm", "ledger_entry", columns, sqlite_where=chosen, postgresql_where=chosen)
