"""Usage beside tokens: seconds, characters, images and searches, in entries and roll-ups."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_ROLLUPS: Final = ("rollup_hour", "rollup_day")
_KEY: Final = (
    "team_id",
    "start_us",
    "organisation_id",
    "key_id",
    "target_id",
    "provider",
    "tier",
    "tag",
    "price_version",
    "pool",
    "origin",
)


def _unit() -> "sa.Column[str]":
    return sa.Column("unit", sa.String(64), nullable=False, server_default=sa.text("''"))


def _quantity() -> "sa.Column[int]":
    return sa.Column("quantity_milli", sa.BigInteger(), nullable=False, server_default="0")


def upgrade() -> None:
    op.add_column("ledger_entry", _unit())
    op.add_column("ledger_entry", _quantity())
    for name in _ROLLUPS:
        # SQLite makes the table anew for another key.
        with op.batch_alter_table(name) as table:
            table.drop_constraint(f"pk_{name}", type_="primary")
            table.add_column(_unit())
            table.add_column(_quantity())
            table.create_primary_key(f"pk_{name}", [*_KEY, "unit"])


def downgrade() -> None:
    # Rows of a unit would meet those without one; the roll-ups can be made anew from the ledger.
    for name in _ROLLUPS:
        op.execute(sa.text(f"DELETE FROM {name} WHERE unit <> ''"))  # noqa: S608  Our own name.
        with op.batch_alter_table(name) as table:
            table.drop_constraint(f"pk_{name}", type_="primary")
            table.create_primary_key(f"pk_{name}", list(_KEY))
            table.drop_column("quantity_milli")
            table.drop_column("unit")
    op.drop_column("ledger_entry", "quantity_milli")
    op.drop_column("ledger_entry", "unit")
