"""Hashes of prompt prefixes, for comparing prompts without keeping their text."""

from typing import Final

_SEED: Final = 0x5EED
_SAMPLE: Final = b"weighbridge " * 4


def prompt_blocks(text: bytes, *, block_bytes: int, most: int) -> tuple[int, ...]:
    """Return chained hashes of the prompt's first `most` whole blocks: equal hash, equal prefix up to that block's end.

    Python's own hash of bytes takes a quarter of a microsecond a block, a keyed one of the library a whole one. Its key is drawn by the
    supervisor for all of its processes, so these hashes mean nothing elsewhere, and nobody outside can make two prompts collide.
    With one key CPython 3.11, 3.12 and 3.13 hash alike; whether two processes do is seen in `HASHES`, which they tell each other.
    """
    end = min(len(text) // block_bytes, most) * block_bytes
    name = _SEED
    names: list[int] = []
    for start in range(0, end, block_bytes):
        name = hash((name, text[start : start + block_bytes]))
        names.append(name)
    return tuple(names)


HASHES: Final = prompt_blocks(_SAMPLE, block_bytes=16, most=3)[-1]
"""Equal in two processes whose block hashes can be compared: those with one key, in Pythons that hash alike."""
