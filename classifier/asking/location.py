"""The place where the ask stands in a message and its system message, and the segments that belong to it."""

from typing import Final, Literal

import msgspec

from classifier.asking.labels import ANSWER_LABEL, EMPTY_CHARS, LONGEST_LABEL, MATERIAL_LABEL, TASK_LABEL
from classifier.asking.lexicon import COMMON, speaks_of, stem_buckets
from classifier.asking.scoring import LESS, classify_segments
from classifier.asking.segments import MATERIAL, REQUEST, RULE, Segment, SegmentedText

Place = Literal["message", "label", "system", "proposal"]
"""The place of an ask: the last user message, behind a label of it, the system message, or the assistant's words before it."""


SHOWN_CHARS: Final = 400
"""Characters of an ask that are shown to whoever asks what was taken for it."""

PLACES: Final = {
    "message": "in the user's message",
    "label": "behind a label of the user's message",
    "system": "in the system message",
    "proposal": "in what the assistant proposed",
}
"""The places in words, for people."""


class Asked(msgspec.Struct, frozen=True):
    """The part of a prompt that is read, as UTF-8."""

    text: bytes
    """The ask, and what it is about."""
    ask: bytes
    """The words that ask. Empty where they are not told apart."""
    place: Place = "message"

    @property
    def shown(self) -> str:
        """The words that ask, on one line and bounded, for people."""
        said = " ".join((self.ask or self.text).decode("utf-8", "replace").split())
        return said if len(said) <= SHOWN_CHARS else f"{said[: SHOWN_CHARS - 1]}…"


SURE: Final = 80
"""The lead of a request that is beyond doubt."""


def _labelled_span(taken: SegmentedText) -> tuple[int, int, int] | None:
    """Return begin, end and rank of the strongest label's value, of several the last; None where no label tells."""
    text, labels = taken.text, taken.labels
    if not labels:
        return None
    best: tuple[int, int, int] | None = None
    open_cue = labels[-1].rank == ANSWER_LABEL and not text[labels[-1].value :].strip(EMPTY_CHARS)
    for at, each in enumerate(labels):
        if each.rank <= 0 or (each.rank == 1 and not open_cue):
            continue
        following = next((other for other in labels[at + 1 :] if not each.end or other.begin >= each.end), None)
        end = each.end or (following.begin if following else len(text))
        if not _is_value(text[each.value : end]):
            continue
        if following is not None and following.rank == ANSWER_LABEL and each.rank != TASK_LABEL and not each.end:
            after = labels.index(following) + 1
            answer_end = labels[after].begin if after < len(labels) else len(text)
            if text[following.value : answer_end].strip(EMPTY_CHARS):
                # A question that has its answer is an example, or what is to be judged.
                for segment in taken.segments:
                    if each.value <= segment.begin < answer_end and segment.kind == REQUEST:
                        segment.kind = MATERIAL
                continue
        if best is None or each.rank >= best[2]:
            best = each.value, end, each.rank
    return best


PLACEHOLDERS: Final = (
    b"the input question",
    b"the user's question",
    b"the user question",
    b"the user's query",
    b"the user's input",
)
"""Openings of a label's value in a template that only says what will stand there."""


def _is_value(value: bytes) -> bool:
    said = value.strip(EMPTY_CHARS)
    return len(said) > 1 and not said[:LONGEST_LABEL].lower().startswith(PLACEHOLDERS)


FEWEST_TELLING: Final = 3

COMPARED_BYTES: Final = 2_048

BYTES_A_SHARED_WORD: Final = 200


def _read_segments(taken: SegmentedText, ask: list[Segment], rank: int) -> list[Segment]:
    """Return the segments that are read: the ask, and of the material those that belong to it."""
    text = taken.text
    near = any(speaks_of(text, segment.begin, segment.end, loosely=not rank) for segment in ask)
    telling: set[int] = set()
    for segment in ask:
        telling |= stem_buckets(text, segment.begin, segment.end)
    telling -= COMMON
    # Who says little means what stands beside it.
    near = near or (not rank and len(telling) < FEWEST_TELLING)
    asking = {id(segment) for segment in ask}
    blocks = {segment.block for segment in ask} if not rank else set()
    shared: dict[int, tuple[int, set[int]]] = {}
    for segment in taken.segments:
        if id(segment) not in asking and segment.kind == MATERIAL and segment.block not in blocks:
            size, found = shared.get(segment.block, (0, set()))
            if size < COMPARED_BYTES:
                found = found | (
                    stem_buckets(text, segment.begin, min(segment.end, segment.begin + COMPARED_BYTES)) & telling
                )
            shared[segment.block] = size + segment.end - segment.begin, found
    kept = {
        block
        for block, (size, found) in shared.items()
        if near or len(found) > min(size, COMPARED_BYTES) // BYTES_A_SHARED_WORD
    }
    return [
        segment
        for segment in taken.segments
        if id(segment) in asking
        # What may be a request is read even where another is surer.
        or (
            segment.kind == MATERIAL
            and (segment.block in kept or segment.block in blocks or (not rank and segment.lead > 0))
        )
    ]


LONG_BYTES: Final = 1_024
"""Material in the line of a request that is longer is no part of the ask."""


def _asking_segments(taken: SegmentedText) -> tuple[list[Segment], int]:
    """Return the segments that ask, and the rank of the label that says so: 0 where their score does."""
    labelled = _labelled_span(taken)
    if labelled is not None:
        begin, end, rank = labelled
        inside = [segment for segment in taken.segments if begin <= segment.begin < end]
        # What follows a label's first block is asked where it asks, and otherwise what it is about.
        blocks = {segment.block for segment in inside if segment.kind == REQUEST} | {
            segment.block for segment in inside[:1]
        }
        inside = [segment for segment in inside if segment.block in blocks]
        kept = [segment for segment in inside if segment.kind in {REQUEST, MATERIAL}]
        own = max((segment.lead for segment in inside), default=0)
        opening = taken.segments[0]
        outside = 0 if begin <= opening.begin < end else opening.lead
        # A weak label within what somebody pasted does not outdo what he asks of it.
        if inside and not (rank == TASK_LABEL and outside > LESS * max(own, SURE // 4)):
            return kept or inside, rank
    if not any(segment.kind == REQUEST for segment in taken.segments):
        # Where nothing else asks a rule does.
        for segment in taken.segments:
            segment.kind = REQUEST if segment.kind == RULE else segment.kind
    requests = [segment for segment in taken.segments if segment.kind == REQUEST]
    lines = {segment.line for segment in requests}
    beside: dict[int, int] = {}
    for segment in taken.segments:
        if segment.kind == MATERIAL and segment.line in lines:
            beside[segment.line] = beside.get(segment.line, 0) + segment.end - segment.begin
    return [
        segment
        for segment in taken.segments
        if segment.kind == REQUEST or (segment.kind == MATERIAL and beside.get(segment.line, LONG_BYTES) < LONG_BYTES)
    ], 0


def _join_segments(text: bytes, segments: list[Segment], every: list[Segment]) -> bytes:
    """Return the segments' text, with what stands between those that are neighbours."""
    number = {id(segment): at for at, segment in enumerate(every)}
    out = []
    for at, segment in enumerate(segments):
        if at:
            before = segments[at - 1]
            if number[id(segment)] == number[id(before)] + 1:
                out.append(text[before.end : segment.begin])
            else:
                out.append(b" " if before.line == segment.line else b"\n" if before.block == segment.block else b"\n\n")
        out.append(text[segment.begin : segment.end])
    return b"".join(out)


def locate(text: bytes, system: bytes = b"") -> Asked:
    """Return the part to read of a user's message with this system message, both with plain marks."""
    taken = classify_segments(text)
    ask, rank = _asking_segments(taken)
    if system and rank <= TASK_LABEL:
        found = _standing_task(system, taken, ask, rank)
        if found:
            return Asked(found + b"\n\n" + text, found, "system")
    if not ask:
        return Asked(text, b"")
    kept = _read_segments(taken, ask, rank)
    place: Place = "label" if rank else "message"
    if len(kept) == len(taken.segments) and not rank:
        told = max(segment.lead for segment in ask) >= TOLD
        return Asked(text, _join_segments(text, ask, taken.segments) if told else b"", place)
    return Asked(_join_segments(text, kept, taken.segments), _join_segments(text, ask, taken.segments), place)


PASTED_BYTES: Final = 200

TOLD: Final = 40
"""The lead from which on a request is told apart where nothing is left out."""

LEAST_TASK: Final = 20
"""The lead from which on a sentence of a system message sets a task; half of it where it speaks of what the user sends."""

TASK_SHARE: Final = 3
"""A task that does not speak of what the user sends is at least this part of its system message; a smaller one is a rule among others."""

LEAST_SHARE: Final = 12
"""The same for a task that speaks of it."""

SURE_TASK: Final = 35
"""The lead from which on it goes before a request that a user's message makes."""

LONG_SYSTEM_BYTES: Final = 3_072
"""A longer system message is mostly a role with its rules: of it only a task for whatever the user sends counts."""


def _standing_task(system: bytes, message: SegmentedText, ask: list[Segment], message_rank: int) -> bytes:
    """Return the task that a system message sets for whatever the user sends, or an empty text."""
    taken = classify_segments(system, system=True)
    tasks, rank = _asking_segments(taken)
    tasks = [segment for segment in tasks if segment.kind in {REQUEST, MATERIAL}]
    lead = max((segment.lead for segment in tasks), default=0)
    near = any(speaks_of(system, segment.begin, segment.end, system=True) for segment in tasks)
    requests = [segment for segment in ask if segment.kind == REQUEST]
    size = sum(segment.end - segment.begin for segment in message.segments)
    pasted = size > PASTED_BYTES and sum(segment.end - segment.begin for segment in requests) < size // 2
    labelled = any(label.rank == MATERIAL_LABEL for label in message.labels)
    brings = pasted or labelled or any(segment.kind == MATERIAL and segment.lead < 0 for segment in message.segments)
    own = max((segment.lead for segment in ask), default=0)
    of_tasks = sum(segment.end - segment.begin for segment in tasks)
    of_system = sum(segment.end - segment.begin for segment in taken.segments if segment.lead >= 0)
    most, some = TASK_SHARE * of_tasks >= of_system, LEAST_SHARE * of_tasks >= of_system
    if lead < (1 if rank > 1 or most else LEAST_TASK // 2 if near else LEAST_TASK):
        return b""
    # Documents in a system message are what a user's own question is about.
    if any(segment.lead < 0 for segment in taken.segments):
        some = most
    if len(system) > LONG_SYSTEM_BYTES:
        wins = near and most and (brings or lead > LESS * own)
    elif message_rank:
        # A label in what is pasted, such as "Problem:", does not outdo the task; one before a request does.
        wins = near and most and lead > own
    elif requests:
        # A user's own request goes before what may be a rule among others.
        wins = (near and some) or (most and lead >= SURE_TASK and size > PASTED_BYTES // 2)
    else:
        # To a greeting nobody applies a task.
        wins = (near and some) or most or size > PASTED_BYTES // 2
    if not wins:
        return b""
    return _join_segments(system, tasks, taken.segments)
