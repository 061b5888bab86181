"""Tokens of sound, pictures and video, in entries and roll-ups."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_TABLES: Final = ("ledger_entry", "rollup_hour", "rollup_day")
_METERS: Final = (
    "audio_input",
    "image_input",
    "cached_audio_input",
    "cached_image_input",
    "audio_output",
    "image_output",
    "video_output",
)


def upgrade() -> None:
    for table in _TABLES:
        for name in _METERS:
            for end in ("tokens", "nanousd"):
                op.add_column(table, sa.Column(f"{name}_{end}", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table in _TABLES:
        for name in reversed(_METERS):
            for end in ("nanousd", "tokens"):
                op.drop_column(table, f"{name}_{end}")
