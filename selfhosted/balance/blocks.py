"""Hashes of prompt prefixes, for comparing prompts without keeping their text."""

from typing import Final

_SEED: Final = 0x5EED
HASHES: Final = hash(b"weighbridge")
"""Equal in two processes whose block hashes can be compared: those of one supervisor."""


def prompt_blocks(text: bytes, *, block_bytes: int, most: int) -> tuple[int, ...]:
    """Chained hashes of the prompt's first `most` whole blocks: equal hash, equal prefix up to that block's end.

    Python's own hash of bytes takes a quarter of a microsecond a block. Its key is drawn by the supervisor for all of
    its processes, so these hashes mean nothing elsewhere, and nobody outside can make two prompts collide.
    """
    end = min(len(text) // block_bytes, most) * block_bytes
    name = _SEED
    names: list[int] = []
    for start in range(0, end, block_bytes):
        name = hash((name, text[start : start + block_bytes]))
        names.append(name)
    return tuple(names)
