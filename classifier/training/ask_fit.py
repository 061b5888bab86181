"""Fits the linear score by which classifier/asking tells requests, material, rules and what is beside the point:
`python -m classifier.training.ask_fit DATA`, where DATA has prompts.parquet.

It learns from texts that are put together of pieces whose class is known: prompts of the tier set in templates of frameworks, with contexts
and phrases around them; nothing held.
"""

import bisect
import collections
import io
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from classifier.asking import vocabulary as words
from classifier.asking.normalization import with_plain_marks
from classifier.asking.scoring import FORM_BUCKETS, WEIGHT_BITS, all_buckets
from classifier.asking.segments import BESIDE, CLASSES, MATERIAL, REQUEST, RULE, segment_text
from classifier.training.tier_set import HELD_KINDS, held_rows, ladders, written
from classifier.training.wrapping import Piece, by_hand, filled, shapes

OUT: Final = Path(words.__file__).parent / "weights.npz"
_CLASS: Final = {"ask": REQUEST, "context": MATERIAL, "frame": RULE, "beside": BESIDE, "example": MATERIAL}
ASKED_CHINESE: Final = tuple(words.ASKED_CHINESE.split())
OPENING: Final = frozenset(words.VERBS.split()) | frozenset(words.ASKED_WITH.split())
_SENTENCE: Final = re.compile(r"(?<=[.!?。？！])\s+|\n+")
STRENGTH: Final = 0.3
_LEVELS: Final = 127
_STEP: Final = 1 / 24

Example = tuple[list[int], int, float]


def marks_and_classes(pieces: Sequence[Piece], weight: float = 1.0) -> Iterator[Example]:
    """Yield the buckets of each segment of a text, and the class of the piece in which most of it lies."""
    data, ends = b"", []
    for _, text in pieces:
        data += with_plain_marks(text.encode("utf-8", "replace"))
        ends.append(len(data))
    segmented = segment_text(data)
    at_of = [bisect.bisect_right(ends, (segment.begin + segment.end) // 2) for segment in segmented.segments]
    segments = collections.Counter(at_of)
    asks = {
        id(segment): _asks(data[segment.begin : segment.end].decode("utf-8", "replace"))
        for segment in segmented.segments
    }
    asked = {at for at, segment in zip(at_of, segmented.segments, strict=True) if asks[id(segment)]}
    at_unit = dict(zip(map(id, segmented.segments), at_of, strict=True))
    for segment, marks in all_buckets(segmented):
        at = at_unit[id(segment)]
        kind = _CLASS[pieces[at][0]]
        if pieces[at][0] == "ask" and segments[at] > 1 and not asks[id(segment)]:
            # Of several sentences some only say how things are; where none is seen to ask, it is not known which does.
            if at not in asked:
                continue
            kind = MATERIAL
        yield marks, kind, weight


def _asks(sentence: str) -> bool:
    first = sentence.lower().split(None, 2)
    return (
        sentence.endswith("?")
        or sentence.startswith(ASKED_CHINESE)
        or any(word.strip(",:.") in OPENING for word in first[:2])
    )


def examples(data: Path, draw: random.Random) -> Iterator[Example]:  # noqa: C901 - one source after the other
    """Return all training examples."""
    known = shapes().part(held=False)
    held = held_rows()
    rows = [
        row
        for row in written()
        if row.kind not in HELD_KINDS and row.row_id not in held and not row.kind.startswith("shaped-")
    ]
    asks = [
        row.prompt.text for row in (*rows, *ladders()) if "\n" not in row.prompt.text and len(row.prompt.text) < 400
    ]
    draw.shuffle(asks)
    tables = pq.read_table(data / "prompts.parquet", columns=["source", "prompt"]).to_pylist()
    prose = [row["prompt"] for row in tables if row["source"] in {"zeroeval_gsm8k", "mmlu_pro", "routellm_mmlu"}]
    draw.shuffle(prose)
    statements = [s for text in prose for s in _SENTENCE.split(text) if s.endswith(".") and len(s) > 40]
    answers = [row.prompt.proposal for row in rows if row.prompt.proposal]
    system = [row.prompt.system for row in rows if row.prompt.system]
    users = [each for each in known.templates if each.place != "system"]
    standing = [each for each in known.templates if each.place == "system"]
    asides = _asides()
    roles = [text for kind, text in asides if kind == "frame"]
    for number, ask in enumerate(asks):
        # What is beside the point comes in as many combinations as there are people.
        around = [(kind, text) for kind, text in draw.sample(asides, 3) if kind != "frame"]
        joint = draw.choice((" ", "\n", "\n\n"))
        said: list[Piece] = [("ask", ask)]
        for kind, text in around:
            said = [(kind, text), (kind, joint), *said] if draw.random() < 0.5 else [*said, (kind, joint), (kind, text)]
        yield from marks_and_classes(said)
        if number % 5 == 0:
            yield from (
                each for kind, text in draw.sample(asides, 4) for each in marks_and_classes([(kind, text)], 0.5)
            )
        yield from marks_and_classes([("ask", ask)])
        template = draw.choice(users)
        if number % 2:
            continue
        yield from marks_and_classes(filled(template.user, ask, known, draw), 0.3)
        for name, pieces in by_hand(ask, known, draw):
            if draw.random() < 0.3:
                yield from marks_and_classes(pieces, 0.3 if name.startswith("context") else 1.0)
        if number % 3 != 1:
            made = " ".join(draw.sample(statements, draw.choice((1, 2, 3, 4))))
            made_up: list[Piece] = [("context", made), ("frame", draw.choice((" ", "\n\n", "\n"))), ("ask", ask)]
            yield from marks_and_classes(made_up if draw.random() < 0.6 else made_up[::-1])
        if number % 4 == 0:
            template = draw.choice(standing)
            yield from marks_and_classes(filled(template.system, ask, known, draw))
        if number % 3 == 0:
            sentences = [draw.choice(roles), " ", _standing_task(draw), " ", draw.choice(roles)]
            yield from marks_and_classes([("ask" if at == 2 else "frame", text) for at, text in enumerate(sentences)])
        if number % 4 == 1 and (template := draw.choice(users)).system:
            yield from marks_and_classes(filled(template.system, ask, known, draw), 0.5)
        if number % 8 == 2:
            yield from marks_and_classes([("context", draw.choice(answers))])
            yield from marks_and_classes([("frame", draw.choice(system))])
        if number % 64 == 3:
            yield from marks_and_classes([("frame", draw.choice(known.systems).text)], 0.3)


_STANDING: Final = (
    "Reply with|Respond with|Answer with|Extract|List|Return|Say|State|Output|Name|Fix|Count|Repeat|Find|Identify|Collect|Classify|Label|Detect|Translate|Summarise|Summarize|Condense|Rewrite|Review|Check|Score|Rate|Convert|Turn"
    "|Assign|Determine|Draft|Prepare|Write|Analyse|Compare|Assess|Reconcile|Redact|Normalise|Correct|Proofread|Tag|Route|Transcribe|Describe|Explain"
)
_OF: Final = (
    "every date|the names of all people|all amounts and their currency|the order number|the language code|the sentiment|the intent|the topic|the main risk"
    "|each clause that limits liability|the parties and their duties|the cause of the failure|each claim with its evidence|the severity|the department"
    "|a short answer|a settlement proposal|a test plan|a list of actions with owners|the steps to reproduce|the missing information|three bullet points"
    "|the contradictions|the tracking number|the misspelt words|the typing errors|the last line|the first name|the tone|the legal position of both sides|every race condition|all personal data|the key figures|a subject line|a migration plan"
)
_FROM: Final = (
    "from the text that the user sends|in the user's message|from the ticket below|of the document given by the user|from the following e-mail|for the input"
    "|in the code that is pasted|from the user's text into German|of the contract that follows|for the complaint that the user forwards|from each message"
    "|in the log that you are given|of what the user sends|for the case that is described|from the transcript|, nothing else|as JSON| in one word| and justify it"
)
_SET: Final = ("", "", "", "Your task is to ", "Your job: ", "You must ", "Please ", "You ", "Task: ", "Always ")


def _standing_task(draw: random.Random) -> str:
    """Return a task that a system message may set for whatever the user sends."""
    lead, verb = draw.choice(_SET), draw.choice(_STANDING.split("|"))
    first = f"{lead}{verb.lower()}" if lead else verb
    more = (
        f", then {draw.choice(_STANDING.split('|')).lower()} {draw.choice(_OF.split('|'))}"
        if draw.random() < 0.3
        else ""
    )
    if draw.random() < _CHOOSES:
        one, two, three = draw.sample(_CHOICES.split("|"), 3)
        return f"{first} {draw.choice(_OF.split('|'))}: {one}, {two} or {three}."
    end = "." if draw.random() < _CHOOSES else f" {draw.choice(_FROM.split('|'))}{more}."
    return f"{first} {draw.choice(_OF.split('|'))}{end}".replace(" ,", ",")


_CHOOSES: Final = 0.15
_CHOICES: Final = "low|medium|high|yes|no|unclear|sales|billing|technical|angry|calm|spam|news|sport|politics|A|B|C|draft|final|one|many"


def _asides() -> list[Piece]:
    """Return sentences that are no ask: courtesies, headings, texts of templates. Those of a kind, and the text."""
    return _sorted("asides.tsv")


def _sorted(name: str) -> list[Piece]:
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return [(kind, text) for kind, _, text in (line.partition("\t") for line in lines)]


_TASKS_IN_SYSTEM: Final = frozenset({"in-app", "instruction-input", "pasted", "extract", "classify", "translate"})
"""Kinds whose system messages may set a task."""


def system_examples(draw: random.Random) -> Iterator[Example]:
    """Return all training examples of system messages: roles and rules, and tasks among them."""
    known = shapes().part(held=False)
    held = held_rows()
    rows = [row for row in written() if row.kind not in HELD_KINDS and row.row_id not in held]
    rows = [row for row in rows if not row.kind.startswith("shaped-")]
    asks = [
        row.prompt.text for row in (*rows, *ladders()) if "\n" not in row.prompt.text and len(row.prompt.text) < 400
    ]
    # Whoever asks a question asks it himself: a task is a command.
    asks = [ask for ask in asks if not ask.endswith("?") and _asks(ask)]
    roles = list(dict.fromkeys(row.prompt.system for row in rows if row.kind not in _TASKS_IN_SYSTEM))
    by_hand = _sorted("standing.tsv")
    rules = [text for kind, text in (*by_hand, *_asides()) if kind == "frame"] + [role for role in roles if role]
    tasks = [text for kind, text in by_hand if kind == "task"]
    templates = [each for each in known.templates if each.place == "system"]
    for text in rules:
        yield from marks_and_classes([("frame", text)])
    for text in (*(each.text for each in known.contexts), *(text for kind, text in _asides() if kind == "context")):
        # Documents stand in system messages too.
        yield from marks_and_classes([("frame", draw.choice(rules)), ("frame", "\n\n"), ("context", text)], 0.2)
    for each in known.systems:
        yield from marks_and_classes([("frame", each.text)], 2.0)
    for template in known.templates:
        if template.system and template.place != "system":
            yield from marks_and_classes(filled(template.system, draw.choice(asks), known, draw), 2.0)
    for number, ask in enumerate((*asks, *tasks * 8, *(_standing_task(draw) for _ in range(1_500)))):
        own = number >= len(asks)
        before, after = (draw.sample(rules, draw.choice((0, 1, 2))) for _ in range(2))
        joint = draw.choice((" ", " ", "\n", "\n\n"))
        pieces: list[Piece] = []
        for kind, text in (*(("frame", text) for text in before), ("ask", ask), *(("frame", text) for text in after)):
            pieces += [("frame", joint), (kind, text)] if pieces else [(kind, text)]
        yield from marks_and_classes(pieces, 1.0 if own else 0.5)
        if number % 6 == 0:
            yield from marks_and_classes(filled(draw.choice(templates).system, ask, known, draw), 0.5)


DROPPED: Final = 0.25
"""Share of a segment's words and pairs that are left out as it is learned from, so that no single one is relied on."""


def _thinned(marks: list[int], draw: random.Random) -> list[int]:
    form = len(marks) - FORM_BUCKETS
    return [mark for at, mark in enumerate(marks) if at >= form or draw.random() >= DROPPED]


def fitted(data: Path, seed: int = 0) -> bytes:
    """Return the weights as an .npz file."""
    draw = random.Random(seed)  # noqa: S311 - it makes up training data
    buffer = io.BytesIO()
    users = _weights(examples(data, draw), draw)
    np.savez_compressed(buffer, weights=users, system_weights=_weights(system_examples(draw), draw))
    return buffer.getvalue()


def _weights(learned: Iterator[Example], draw: random.Random) -> NDArray[np.int8]:
    rows, columns, classes, counted = [], [], [], []
    for number, (each, kind, weight) in enumerate(learned):
        marks = _thinned(each, draw)
        rows += [number] * len(marks)
        columns += marks
        classes.append(kind)
        counted.append(weight)
    known = np.array(classes)
    design = sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=(len(known), 2**WEIGHT_BITS))
    balance = np.array(counted) / np.sqrt(np.bincount(known, minlength=CLASSES))[known]
    model = LogisticRegression(C=STRENGTH * 20, max_iter=150).fit(
        design, known, sample_weight=balance * len(known) / balance.sum() * 0.01
    )
    print(f"{len(known)} segments, {np.bincount(known)}, {model.score(design, known):.4f} right")
    # A class that is not there, such as a courtesy in a system message, is never the likeliest.
    whole = np.full((2**WEIGHT_BITS + 1, CLASSES), 0.0)
    whole[-1] = -_LEVELS * _STEP
    whole[:, model.classes_] = np.vstack([model.coef_.T, model.intercept_[None]])
    found: NDArray[np.int8] = np.clip(np.rint(whole / _STEP), -_LEVELS, _LEVELS).astype(np.int8)
    return found


if __name__ == "__main__":
    OUT.write_bytes(fitted(Path(sys.argv[1])))
