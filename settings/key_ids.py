"""Ids of API keys. A key that replaces another has the first one's id before its own, `key_1.2`.

What is spent and limited by key counts under the first id, so a rotation changes nothing of it.
"""

from typing import Final

SEPARATOR: Final = "."
FIRST_CHARS: Final = 16
"""Characters of the id of a key that replaced none."""


def first_id(key_id: str) -> str:
    """Return the id of the first key of those that replaced one another."""
    return key_id.partition(SEPARATOR)[0]


def successor_id(replaced: str, key_id: str) -> str:
    """Return the id of a new key that replaces an older one; `key_id` is what it would be called otherwise."""
    return f"{first_id(replaced)}{SEPARATOR}{key_id.partition('_')[2]}"
