"""The tables of this package as arrays for classifier/featurize.c, and their fingerprint."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classifier.asking import vocabulary as words
from classifier.asking.labels import LABELS, LAST_WORDS, TAGS
from classifier.asking.lexicon import (
    CHINESE_INPUTS,
    CHINESE_NEAR,
    COMMON,
    FNV_OFFSET,
    FNV_PRIME,
    FOLDED,
    STEM_BITS,
    UINT32,
    WORD_BYTES,
    WORDS,
)
from classifier.asking.location import (
    BYTES_A_SHARED_WORD,
    COMPARED_BYTES,
    FEWEST_TELLING,
    LEAST_SHARE,
    LEAST_TASK,
    LONG_BYTES,
    LONG_SYSTEM_BYTES,
    PASTED_BYTES,
    PLACEHOLDERS,
    SURE,
    SURE_TASK,
    TASK_SHARE,
    TOLD,
)
from classifier.asking.normalization import ALPHABETS
from classifier.asking.scoring import (
    LESS,
    MARGIN,
    SIGNATURE_BYTES,
    SIGNED_SEGMENTS,
    SURELY_BESIDE,
    SYSTEM_MARGIN,
    WEIGHT_BITS,
    weights,
)
from classifier.asking.segments import SCORED_BYTES


def compiled_tables() -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
    """Return the arrays and numbers for classifier/featurize.c, which does the same."""
    common = np.zeros(2**STEM_BITS // 64, np.uint64)
    for stem in COMMON:
        common[stem >> 6] |= np.uint64(1 << (stem & 63))
    arrays: dict[str, NDArray[Any]] = {
        "weights": weights(),
        "system_weights": weights(system=True),
        "common": common,
        "lookalike": np.frombuffer(
            bytes(words.LOOKALIKES.get(chr(code), "\0").encode()[0] for code in ALPHABETS), np.uint8
        ),
        "alike": np.frombuffer(bytes(FOLDED[byte] if byte in WORD_BYTES else 0 for byte in range(256)), np.uint8),
        "near": _sequences(CHINESE_NEAR),
        "inputs": _sequences(CHINESE_INPUTS),
        "fill": _sequences(PLACEHOLDERS),
    }
    numbers = {
        "weight_bits": WEIGHT_BITS,
        "scored": SCORED_BYTES,
        "long_system": LONG_SYSTEM_BYTES,
        "margin": MARGIN,
        "system_margin": SYSTEM_MARGIN,
        "surely_beside": SURELY_BESIDE,
        "less": LESS,
        "compared": COMPARED_BYTES,
        "a_shared_word": BYTES_A_SHARED_WORD,
        "long_material": LONG_BYTES,
        "pasted": PASTED_BYTES,
        "signed_units": SIGNED_SEGMENTS,
        "signature": SIGNATURE_BYTES,
        "fewest_telling": FEWEST_TELLING,
        "sure": SURE,
        "told": TOLD,
        "least_task": LEAST_TASK,
        "sure_task": SURE_TASK,
        "task_share": TASK_SHARE,
        "least_share": LEAST_SHARE,
    }
    known = {
        name: {_name_hash(key): value for key, value in names.items()}
        for name, names in (("label", LABELS), ("tag", TAGS), ("last", LAST_WORDS))
    }
    for name, values in (*known.items(), ("word", WORDS)):
        keys, ranks = _slots(values)
        arrays |= {f"{name}_keys": keys, f"{name}_values": ranks}
        numbers[f"{name}_mask"] = len(keys) - 1
    return arrays, numbers


def fingerprint() -> str:
    """Return the SHA-256 of the tables and numbers that find the ask."""
    arrays, numbers = compiled_tables()
    parts = [f"{name} {value}" for name, value in sorted(numbers.items())]
    parts += [f"{name} {hashlib.sha256(array.tobytes()).hexdigest()}" for name, array in sorted(arrays.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _name_hash(name: bytes) -> int:
    value = FNV_OFFSET
    for byte in name:
        value = ((value ^ byte) * FNV_PRIME) & UINT32
    return value or 1


def _slots(values: Mapping[int, int]) -> tuple[NDArray[np.uint32], NDArray[np.int8]]:
    """Return hashes in slots, at most a quarter of them taken, and the values beside; 0 is no hash."""
    size = 1 << (4 * len(values)).bit_length()
    keys, found = np.zeros(size, np.uint32), np.zeros(size, np.int8)
    for key, value in values.items():
        slot = key & (size - 1)
        while keys[slot]:
            slot = (slot + 1) & (size - 1)
        keys[slot], found[slot] = key, value
    return keys, found


def _sequences(parts: Sequence[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(bytes([len(part)]) + part for part in parts) + b"\0", np.uint8)
