"""Answer retention: the bytes of an answer that are held to be judged or compared, before or after its reply."""

from typing import Final

from accounts.caller import Caller
from classifier.prediction import Prediction

KEPT_BYTES: Final = 256 * 1024
"""The most payload bytes that a request retains to be judged after its reply."""
MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""The most payload bytes of an answer that a shadow request is compared with: a stream's events are some sixty times the size of their text."""
_KEPT_IN_ALL_BYTES: Final = 256 * 1024 * 1024
"""The most bytes of held or retained answers in a process, so that thousands of streams do not exhaust its memory."""


def portion_bytes(most: int, in_flight: int) -> int:
    """Return one request's memory bound: `most`, or its equal share of the process's total for `in_flight` requests."""
    return most if most * in_flight <= _KEPT_IN_ALL_BYTES else _KEPT_IN_ALL_BYTES // in_flight


def kept_bytes(caller: Caller, prediction: Prediction | None, in_flight: int, *, compared: bool) -> int:
    """Return the payload bytes to retain of an answer; 0 where nothing is learned from it. `compared` marks an answer
    that a shadow request may be compared with.
    """
    if prediction is None or not learns(caller):
        return 0
    return portion_bytes(MAX_PAYLOAD_BYTES if compared else KEPT_BYTES, in_flight)


def learns(caller: Caller) -> bool:
    """Return True when the team allows learning from its requests."""
    return caller.settings.learning != "off"
