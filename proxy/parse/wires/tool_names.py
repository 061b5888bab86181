"""Tool names within 64 characters: OpenAI and others refuse longer ones, and agents send such."""

from hashlib import blake2b
from typing import Final

_MAX_CHARS: Final = 64
_CHECKSUM_BYTES: Final = 4


def short_name(name: str) -> str:
    """Return the name, or its beginning with a checksum of the whole: the same each time, so that prefixes stay the
    same.
    """
    if len(name) <= _MAX_CHARS:
        return name
    checksum = blake2b(name.encode(errors="surrogatepass"), digest_size=_CHECKSUM_BYTES).hexdigest()
    return f"{name[: _MAX_CHARS - len(checksum) - 1]}_{checksum}"
