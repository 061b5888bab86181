"""Scores made-up prompts with the library at argv[1] for argv[2] seconds; tells how many. Run by test_sanitized.py."""

import random
import sys
import time
from pathlib import Path

from classifier import compiled

# Before the modules that open it are imported.
compiled.LIBRARY = Path(sys.argv[1])  # type: ignore[misc]

from classifier import features  # noqa: E402
from classifier.onnx_classifier import open_classifier  # noqa: E402
from classifier.prediction import Prompt  # noqa: E402
from classifier.tokens import estimate_tokens  # noqa: E402

_PIECES = (
    "abc ", "A. ", "- ", "1. ", "12 words ", "300-line ", "\n", "```", "中文", "é", "😀", "$\\", "()[]{}", "0123456789", "_",
    "word word ", "\u00a0", "\u202f", "?", ",", "\x00", "\x7f", "\ud7ff",
    "'", '"', "`", "“", "»", "it's ", "? ", ". ", "'quoted for long enough' ",
)  # fmt: skip


def _text(rng: random.Random) -> str:
    most = rng.choice((0, 1, 2, 5, 20, 200, 1_500, 5_000, 9_000))
    if rng.random() < 0.7:
        return "".join(rng.choices(_PIECES, k=rng.randint(0, max(1, most // 3))))[:most]
    ranges = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0x10000, 0x10FFFF))
    return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(most // 4))


def main() -> None:
    assert features.COMPILED is not None
    rng, classifier = random.Random(1), open_classifier()
    ends, count = time.monotonic() + float(sys.argv[2]), 0
    while time.monotonic() < ends:
        text = _text(rng)
        history = text[::-1][: rng.choice((0, 3, 50, 3_000))]
        prompt = Prompt(text=text, history=history, turns=rng.choice((1, 2, 9)), tools=rng.choice((0, 1, 9)))
        assert 0 <= classifier.classify(prompt, "team").complexity <= 1
        assert estimate_tokens(text) >= 0
        count += 1
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main()
