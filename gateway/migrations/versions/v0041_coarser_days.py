"""Roll-ups by day without keys, models or teams, filled from those that have them."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0039"
branch_labels = None
depends_on = None

_ADDED_UP: Final = (
    (
        "rollup_team_model_day",
        "rollup_day",
        "team_id start_us organisation_id target_id provider tier price_version pool origin unit",
    ),
    ("rollup_team_day", "rollup_team_model_day", "team_id start_us organisation_id pool origin unit"),
    (
        "rollup_model_day",
        "rollup_team_model_day",
        "organisation_id start_us target_id provider tier price_version pool origin unit",
    ),
)
"""Each table, the finer one that it is the sums of, and its key."""
_DIMENSIONS: Final = {*" ".join(key for _, _, key in _ADDED_UP).split(), "key_id", "tag"}


def upgrade() -> None:
    columns = {each["name"]: each for each in sa.inspect(op.get_bind()).get_columns("rollup_day")}
    sums = [name for name in columns if name not in _DIMENSIONS]
    for table, finer, dimensions in _ADDED_UP:
        key = dimensions.split()
        op.create_table(
            table,
            *(
                sa.Column(name, each["type"], nullable=False, server_default=_default(each["default"]))
                for name, each in columns.items()
                if name in {*key, *sums}
            ),
            sa.PrimaryKeyConstraint(*key, name=f"pk_{table}"),
        )
        op.create_index(f"ix_{table}_start_us", table, ["start_us"])
        op.execute(
            f"INSERT INTO {table} ({', '.join((*key, *sums))}) "  # noqa: S608  Our own names.
            f"SELECT {', '.join(key)}, {', '.join(f'sum({name})' for name in sums)} FROM {finer} GROUP BY {', '.join(key)}"
        )


def _default(found: str | None) -> sa.TextClause | None:
    return None if found is None else sa.text(found)


def downgrade() -> None:
    for table, _, _ in _ADDED_UP:
        op.drop_table(table)
