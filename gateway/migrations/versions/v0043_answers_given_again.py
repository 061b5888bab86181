"""Answers that were kept and given again, apart from what models answered."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None
OLDER_CODE_SERVES = True

_OF_ENTRY: Final = ("replayed_input_tokens", "replayed_output_tokens", "cache_saved_nanousd")
_ROLLUPS: Final = ("rollup_hour", "rollup_day", "rollup_team_model_day", "rollup_team_day", "rollup_model_day")
_ADDED: Final = {"ledger_entry": _OF_ENTRY, **dict.fromkeys(_ROLLUPS, ("cache_hits", *_OF_ENTRY))}


def upgrade() -> None:
    for table, names in _ADDED.items():
        for name in names:
            op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table, names in _ADDED.items():
        for name in names:
            op.drop_column(table, name)
