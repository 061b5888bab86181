"""The table of LiteLLM's keys that need no more than words: `keys.toml`."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from gateway.from_litellm.told import Account, Item, Outcome

TABLE_FILE: Final = Path(__file__).with_name("keys.toml")
Place = Literal["top", "litellm_params", "model_info", "litellm_settings", "router_settings", "general_settings"]
UNKNOWN: Final = "no key of LiteLLM's that is known here; nothing was made of it"


class KeyWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of a key."""

    outcome: Outcome
    words: str = ""


@cache
def _table() -> Mapping[str, Mapping[str, KeyWords]]:
    return msgspec.convert(
        tomllib.loads(TABLE_FILE.read_text(encoding="utf-8")), dict[str, dict[str, KeyWords]], strict=True
    )


def words_for(place: Place, key: str) -> KeyWords | None:
    """Return a key's row, or that of its beginning; None where the table has neither."""
    rows = _table()[place]
    found = rows.get(key)
    if found is not None:
        return found
    return next((row for name, row in rows.items() if name.endswith("*") and key.startswith(name[:-1])), None)


def tell_by_table(account: Account, place: Place, key: str, item: Item) -> None:
    """Tell what becomes of a key that no code has a use for."""
    row = words_for(place, key)
    if row is None:
        others = [each for each in get_args(Place) if each != place and words_for(each, key) is not None]
        account.tell(
            item, "not possible", f"LiteLLM reads it in {' and '.join(others)}, not here" if others else UNKNOWN
        )
    else:
        account.tell(item, row.outcome, row.words)
