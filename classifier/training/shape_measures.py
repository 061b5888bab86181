"""The order of complexity in the shapes in which programs and people send prompts, and the choices that a shape changes.

All of it on held templates, contexts and phrases around prompts of held kinds, and on held rows of the shaped prompts.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.asking import vocabulary as ask_words
from classifier.prediction import Prompt
from classifier.training.rewording import CHANGES
from classifier.training.tier_set import HELD_KINDS, Tiered, held_rows, written
from classifier.training.wrapping import Shapes, by_hand, in_template, shapes, text_of

Floats = NDArray[np.float64]
Complexity = Callable[[Sequence[Prompt]], Floats]

MOST_ASKS: Final = 120
HARD: Final = 0.5
"""Complexity from which on a prompt goes to the better of two targets."""


def asks(seed: int = 0) -> list[Tiered]:
    """Return the held prompts that are a message and nothing else, of each tier as many."""
    rows = [row for row in written() if row.kind in HELD_KINDS and not row.prompt.system and not row.prompt.history]
    draw = random.Random(seed)  # noqa: S311 - it draws what is measured
    draw.shuffle(rows)
    each = MOST_ASKS // 4
    return [row for tier in range(4) for row in [row for row in rows if row.tier == tier][:each]]


def order(tiers: Sequence[int], scores: Floats) -> float:
    """Return the share of pairs of different tiers in the right order; a tie counts half."""
    known = np.array(tiers)
    higher = known[:, None] > known[None]
    apart = np.sign(scores[:, None] - scores[None])[higher]
    return round(float(((apart > 0) + 0.5 * (apart == 0)).mean()), 4) if higher.any() else float("nan")


def _changed(scores: Floats, before: Floats) -> float:
    return round(float(((scores >= HARD) != (before >= HARD)).mean()), 4)


_TO_LOOKALIKES: Final = {ord(latin): other for other, latin in ask_words.LOOKALIKES.items() if latin in "aeopcyxs"}


def disguised(prompt: Prompt, draw: random.Random) -> Prompt:
    """Return the text with look-alike letters and invisible characters."""
    text = "".join(
        chr(ord(_TO_LOOKALIKES.get(ord(each), each))) if draw.random() < 0.5 else each for each in prompt.text
    )
    return msgspec.structs.replace(
        prompt, text=re.sub(r"(?<=\w)(?=\w)", lambda _: "\u200b" if draw.random() < 0.1 else "", text)
    )


def variants(rows: Sequence[Tiered], known: Shapes, draw: random.Random) -> Iterator[tuple[str, list[Prompt]]]:
    """Yield each change that leaves the task as it is: its name, and the prompts."""
    made: dict[str, list[Prompt]] = {}
    for row in rows:
        for name, pieces in by_hand(row.prompt.text, known, draw):
            made.setdefault(name, []).append(msgspec.structs.replace(row.prompt, text=text_of(pieces)))
    yield from made.items()
    yield "typos", [CHANGES["typos"](row.prompt, draw) for row in rows]
    yield "tools", [msgspec.structs.replace(row.prompt, tools=5) for row in rows]
    yield (
        "long system message",
        [msgspec.structs.replace(row.prompt, system=draw.choice(known.systems).text) for row in rows],
    )
    yield "look-alikes", [disguised(row.prompt, draw) if row.prompt.text.isascii() else row.prompt for row in rows]


def measures(complexity: Complexity, seed: int = 0) -> dict[str, Any]:
    """Return the pair order by kind of shaped rows, by template and as a whole; and the share of choices that each
    change turns.
    """
    held = held_rows()
    shaped = [row for row in written() if row.row_id in held]
    scores = complexity([row.prompt for row in shaped])
    rows = asks(seed)
    tiers = [row.tier for row in rows]
    known = shapes().part(held=True)
    plain = complexity([row.prompt for row in rows])
    found: dict[str, Any] = {
        "rows": {"all": order([row.tier for row in shaped], scores)},
        "templates": {},
        "changes": {},
    }
    for kind in sorted({row.kind for row in shaped}):
        at = [number for number, row in enumerate(shaped) if row.kind == kind]
        found["rows"][kind] = order([shaped[number].tier for number in at], scores[at])
    found["templates"]["bare"] = order(tiers, plain)
    for template in known.templates:
        if template.any_ask:
            draw = random.Random(seed)  # noqa: S311 - as above
            said = complexity([in_template(row.prompt, template, known, draw) for row in rows])
            found["templates"][template.id] = order(tiers, said)
    for name, prompts in variants(rows, known, random.Random(seed)):  # noqa: S311 - as above
        said = complexity(prompts)
        found["changes"][name] = {"turned": _changed(said, plain), "order": order(tiers, said)}
    return found
