"""The calibration set: questions with checkable answers, in an order of which every beginning is balanced."""

import functools
import gzip
import importlib.resources
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from classifier.prediction import Prompt

Kind = Literal["choice", "number", "literal", "tool"]
SET_FILE: Final = "calibration.jsonl.gz"

_INSTRUCTIONS: Final[dict[Kind, str]] = {
    "choice": (
        "Answer the multiple-choice question. Think it through briefly, then end with one line of its own: "
        "`Answer: X`, where X is the letter of the one right choice."
    ),
    "number": (
        "Solve the problem. Think it through briefly, then end with one line of its own: `Answer: N`, where N is the "
        "final number and nothing else."
    ),
    "literal": (
        "Think it through briefly, then end with one line of its own: `Answer: L`, where L is the Python literal that "
        "completes the assertion and nothing else."
    ),
    "tool": (
        "Call the tool, or the tools, that serve the request, with arguments from the request alone. Where no tool "
        "serves it, say so in one sentence and call none."
    ),
}


class ExpectedCall(msgspec.Struct, frozen=True):
    """One call that is right: a name, and for each argument the values that are accepted."""

    name: str
    arguments: dict[str, list[Any]] = {}
    optional: list[str] = []
    """Arguments that may be left out."""


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question with its checkable answer."""

    question_id: str
    source: str
    category: str
    kind: Kind
    text: str
    gold: str = ""
    calls: list[ExpectedCall] = []
    """The calls that are right, in any order; for a question of kind `tool` none means that calling is wrong."""
    tools: list[dict[str, Any]] = []
    outcomes: str = ""
    """Outcomes of known models, one character each in the order of `CalibrationSet.models`: 1, 0, or - for not asked."""

    @property
    def instructions(self) -> str:
        """The system message that tells the form of the answer."""
        return _INSTRUCTIONS[self.kind]

    @property
    def prompt(self) -> Prompt:
        """The question as the classifier weighs it: without the instructions, as it was learned."""
        return Prompt(text=self.text, tools=len(self.tools))


class CalibrationSet(msgspec.Struct, frozen=True, kw_only=True):
    """All questions, in the order in which they are asked."""

    models: list[str]
    """The known models of `Question.outcomes`."""
    questions: Sequence[Question]

    def first(self, count: int) -> Sequence[Question]:
        """Return the first `count` questions, a sample of all sources and difficulties."""
        return self.questions[:count]


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the file."""

    format: int
    models: list[str]
    licences: dict[str, str]


FORMAT: Final = 1


def encoded(questions: CalibrationSet, licences: dict[str, str]) -> bytes:
    """Return the set as the bytes of its file; the same set gives the same bytes."""
    header = _Header(format=FORMAT, models=questions.models, licences=licences)
    lines = [msgspec.json.encode(each) for each in (header, *questions.questions)]
    return gzip.compress(b"\n".join(lines) + b"\n", 9, mtime=0)


def decoded(content: bytes) -> CalibrationSet:
    """Return the set of a file. Raises ValueError for another format."""
    head, *lines = gzip.decompress(content).splitlines()
    header = msgspec.json.decode(head, type=_Header)
    if header.format != FORMAT:
        raise ValueError(f"the calibration set has format {header.format}, this code reads {FORMAT}")
    decoder = msgspec.json.Decoder(Question)
    return CalibrationSet(models=header.models, questions=tuple(decoder.decode(line) for line in lines))


@functools.cache
def calibration_set() -> CalibrationSet:
    """Return the set that ships."""
    return decoded((importlib.resources.files("classifier.measuring") / SET_FILE).read_bytes())
