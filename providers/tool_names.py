"""Names of tools, and ids of their calls, in the letters and the length that a provider takes: agents send others."""

import re
from hashlib import blake2b
from typing import Final

MOST_CHARS: Final = 64
"""The longest name that OpenAI and others take."""
_CHECKSUM_BYTES: Final = 4
_ODD: Final = re.compile(r"[^a-zA-Z0-9_-]")


def fitting_name(name: str, most: int = MOST_CHARS) -> str:
    """Return the name, or one that fits, with a checksum of the whole: the same each time, so that prefixes stay the same, and
    another one for each name.
    """
    if len(name) <= most and not _ODD.search(name):
        return name
    return with_checksum(name, name, most)


def with_checksum(name: str, whole: str, most: int = MOST_CHARS) -> str:
    """Return the name as it fits with the checksum of `whole` behind it."""
    checksum = blake2b(whole.encode(errors="surrogatepass"), digest_size=_CHECKSUM_BYTES).hexdigest()
    return f"{_ODD.sub('_', name)[: most - len(checksum) - 1]}_{checksum}"
