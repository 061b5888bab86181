"""The ask of a prompt, in the parts of it that are searched."""

import re
from typing import Final

from classifier.asking import vocabulary as words
from classifier.asking.consent import accepted_proposal
from classifier.asking.location import Asked, locate
from classifier.asking.normalization import with_plain_marks
from classifier.prediction import Prompt

SEARCHED_BYTES: Final = 16_384
"""Bytes of each end of a longer message that are searched for labels."""

SYSTEM_BYTES: Final = 2_048
"""Bytes of each end of a longer system message that are searched for a task."""

CONSENT_CHARS: Final = 120

_ONLY_HARNESS: Final = re.compile(rf"\s*(?:<({words.HARNESS_TAGS})>(?:(?!</\1>).)*</\1>\s*)+", re.DOTALL)


def bounded(text: str, head: int, tail: int) -> bytes:
    """Return a text as UTF-8: of a long one `head` bytes of its start and `tail` of its end, on lines of their own."""
    # A lone surrogate cannot be encoded; it reads as a question mark.
    if len(text) > head + tail:
        # A character has a byte at least, so each end is long enough.
        ends = text[:head].encode("utf-8", "replace")[:head], text[-tail:].encode("utf-8", "replace")[-tail:]
        return b"\n".join(ends)
    data = text.encode("utf-8", "replace")
    return b"%b\n%b" % (data[:head], data[-tail:]) if len(data) > head + tail + 1 else data


def searched(text: str) -> bytes:
    """Return the part of a message that is searched for its ask."""
    return bounded(text, SEARCHED_BYTES, SEARCHED_BYTES)


def resolve(prompt: Prompt) -> Asked:
    """Return the ask of a prompt, with plain marks. The time is bounded for any text."""
    text, system, settled = to_search(prompt)
    data = with_plain_marks(text)
    return Asked(data, data, "proposal") if settled else locate(data, with_plain_marks(system))


def to_search(prompt: Prompt) -> tuple[bytes, bytes, bool]:
    """Return the parts to search of a prompt's last user message and of its system message, and False.

    Where the message accepts the assistant's proposal, return that, no system message, and True: it is settled, and read as it
    is.
    """
    text, system = prompt.text, prompt.system
    if prompt.before and _ONLY_HARNESS.fullmatch(text, 0, SEARCHED_BYTES):
        # Nothing but a program's own words: what the user asked stands before.
        text = prompt.before
    if prompt.proposal and len(text) <= CONSENT_CHARS:
        accepted = accepted_proposal(text, prompt.proposal)
        if accepted:
            return searched(accepted), b"", True
    return searched(text), bounded(system, SYSTEM_BYTES, SYSTEM_BYTES) if system else b"", False
