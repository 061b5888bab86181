"""Prompts in the shapes in which programs and people send them: what is asked stays the same, what stands around it does not.

The shapes are data, classifier/training/shapes: templates of public frameworks, contexts, and phrases. Those marked as held are judged
and never learned from.
"""

import random
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from classifier.prediction import Prompt

FOLDER: Final = Path(__file__).parent / "shapes"
_PLACE: Final = re.compile(r"(\{(?:ask|context|format|tools|history|examples)\})")

Piece = tuple[str, str]
"""The kind of a part of a text (`ask`, `context`, `frame`, or a kind of phrase), and the part."""


class Template(msgspec.Struct, frozen=True):
    """A template of a framework: a user message and a system message with places to fill."""

    id: str
    framework: str
    held: bool
    place: str
    user: str
    system: str = ""
    long_system: bool = False
    any_ask: bool = True
    """True where every ask keeps its tier in it, False where the template's own words are a task."""


class Text(msgspec.Struct, frozen=True):
    """A context or phrase."""

    id: str
    text: str
    kind: str = ""
    held: bool = False
    lang: str = "en"


class Shapes(msgspec.Struct, frozen=True):
    """All shapes, or those that may be learned from, or the held ones."""

    templates: list[Template]
    contexts: list[Text]
    phrases: dict[str, list[Text]]
    systems: list[Text]
    """Long system messages."""

    def part(self, *, held: bool) -> "Shapes":
        """Return the shapes that are held, or the others."""
        return Shapes(
            [each for each in self.templates if each.held == held],
            [each for each in self.contexts if each.held == held],
            {kind: [each for each in texts if each.held == held] for kind, texts in self.phrases.items()},
            [each for each in self.systems if each.held == held],
        )


def shapes(folder: Path = FOLDER) -> Shapes:
    """Return the shapes of a folder."""
    templates = [
        msgspec.convert(row, Template, strict=False)
        for row in tomllib.loads((folder / "templates.toml").read_text())["template"]
    ]
    phrases: dict[str, list[Text]] = {}
    for each in _texts(folder / "phrases.jsonl"):
        phrases.setdefault(each.kind, []).append(each)
    return Shapes(templates, _texts(folder / "contexts.jsonl"), phrases, _texts(folder / "systems.jsonl"))


def _texts(path: Path) -> list[Text]:
    return [msgspec.json.decode(line, type=Text) for line in path.read_text().splitlines() if line.strip()]


def filled(text: str, ask: str, known: Shapes, draw: random.Random) -> list[Piece]:
    """Return the pieces of a template's text whose places are filled."""
    found: list[Piece] = []
    for part in _PLACE.split(text):
        name = part[1:-1] if _PLACE.fullmatch(part) else ""
        if name == "ask":
            found.append(("ask", ask))
        elif name == "context":
            found.append(
                ("context", "\n\n".join(each.text for each in draw.sample(known.contexts, draw.choice((1, 1, 2, 3)))))
            )
        elif name:
            found.append(("frame" if name in {"format", "tools"} else "example", draw.choice(known.phrases[name]).text))
        elif part:
            found.append(("frame", part))
    return found


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(text for _, text in pieces)


def in_template(prompt: Prompt, template: Template, known: Shapes, draw: random.Random) -> Prompt:
    """Return the prompt's message in a template."""
    user, system = (text_of(filled(text, prompt.text, known, draw)) for text in (template.user, template.system))
    if template.long_system:
        system = f"{system}\n{draw.choice(known.systems).text}".strip()
    return msgspec.structs.replace(prompt, text=user.strip("\n"), system=system or prompt.system)


def phrase_around(ask: str, text: str) -> list[Piece]:
    """Return a phrase with a place for the ask, or one that stands before it."""
    before, place, after = text.partition("{ask}")
    if not place:
        return [("beside", text), ("frame", " "), ("ask", ask)]
    return [piece for piece in (("beside", before), ("ask", ask), ("beside", after)) if piece[1]]


def by_hand(ask: str, known: Shapes, draw: random.Random) -> Iterator[tuple[str, list[Piece]]]:
    """Yield each change that people make around an ask: its name and the pieces."""
    contexts = [each.text for each in draw.sample(known.contexts, 3)]
    yield "context before", [("context", contexts[0]), ("frame", "\n\n"), ("ask", ask)]
    yield "context after", [("ask", ask), ("frame", "\n\n"), ("context", contexts[1])]
    yield (
        "context around",
        [("context", contexts[0]), ("frame", "\n\n"), ("ask", ask), ("frame", "\n\n"), ("context", contexts[2])],
    )
    yield "signature", [("ask", ask), ("frame", "\n\n"), ("beside", draw.choice(known.phrases["signature"]).text)]
    yield "polite frame", phrase_around(ask, draw.choice(known.phrases["polite"]).text)
    for kind in ("hard-praise", "easy-praise"):
        praise = draw.choice(known.phrases[kind]).text
        if "{ask}" in praise:
            yield kind, phrase_around(ask, praise)
        else:
            pieces: list[Piece] = [("beside", praise), ("frame", draw.choice((" ", "\n"))), ("ask", ask)]
            yield kind, pieces if draw.random() < 0.5 else pieces[::-1]


PRAISED: Final = ("hard-praise", "easy-praise")


def wrapped(prompt: Prompt, known: Shapes, draw: random.Random) -> Prompt:
    """Return the prompt as a program or a person might send it: its task stays the same."""
    if prompt.history or draw.random() < _BY_HAND:
        name, pieces = draw.choice(list(by_hand(prompt.text, known, draw)))
        if prompt.history and name not in {"polite frame", *PRAISED, "signature"}:
            return prompt
        found = msgspec.structs.replace(prompt, text=text_of(pieces))
    else:
        found = in_template(
            prompt, draw.choice([each for each in known.templates if _takes(each, prompt)]), known, draw
        )
    if not found.system and draw.random() < _WITH_SYSTEM:
        found = msgspec.structs.replace(found, system=draw.choice(known.systems).text)
    return found


_BY_HAND: Final = 0.5
_WITH_SYSTEM: Final = 0.1


def _takes(template: Template, prompt: Prompt) -> bool:
    """Return True if a template can stand around a prompt whose message may bring a system message of its own."""
    return (
        template.any_ask
        and not (prompt.system and template.system)
        and not (template.place == "system" and "\n" in prompt.text)
    )
