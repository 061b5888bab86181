"""Whatever strangers send, a reader reads it or refuses it by the error that it names: a few hundred tries each, the same ones in each run."""

import random
from typing import Final

import pytest

from tests.examples import IS_LONG
from tests.fuzz.fuzzing import broken_by, smallest
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS

_TRIES: Final = 2_000 if IS_LONG else 60
_BY_NAME: Final = {each.name: each for each in TARGETS}


def test_each_reader_is_there_once() -> None:
    """A name replays one."""
    assert len(_BY_NAME) == len(TARGETS)


@pytest.mark.parametrize("name", sorted(_BY_NAME))
def test_nothing_but_its_own_errors_is_raised(name: str) -> None:
    """Over examples, and over bytes near to them."""
    target, chance = _BY_NAME[name], random.Random(name)
    tried = [*target.seeds, *(mutated(chance, target.seeds, target.form) for _ in range(_TRIES))]
    for data in tried:
        error = broken_by(target, data)
        assert error is None, f"{smallest(target, data, error)!r}: {error!r}"


_DEEP: Final = b'{"a":' * 2_000
_LONG: Final = b"1" * 5_000


@pytest.mark.parametrize(
    ("name", "data"),
    [
        # Bytes that are no UTF-8, and nesting, are errors of their own to a decoder, beside its own error.
        ("a batch's answers", b'{"custom_id":"\x9b"'),
        ("a batch's answers", b'{"custom_id":' + _DEEP),
        ("audit's export", b'{"hash":"\xa3"'),
        ("kept answer", b"\x85\xa7made_us\x01\xa9target_id\xa1\xa1"),
        ("traces", _DEEP),
        ("feedback", _DEEP),
        ("budget", _DEEP),
        ("budget", b'{"scope":"\xff'),
        ("words of an upstream's error", b'{"error":{"message":"\xff'),
        ("request /v1/messages", b'{"model":"auto","max_tokens":9,"messages":[],"metadata":{"user_id":"' + b'{\\"a\\":' * 2_000 + b'"}}'),
        # Python counts no number of more than 4,300 digits.
        ("openai's statement", b"start_time,e\n" + _LONG),
        ("address of a database", b"postgresql://h:" + _LONG),
        # A number that a float does not hold, and half of a pair of surrogates.
        ("guard", b'{"model":"m","metadata":{"a":1e400}}'),
        ("prices", b'{"input":"\\ud83d","":0}'),
        ("prices", b'{"input":1e9999999999999999999}'),
        ("head", b"POST *0 HTTP/1.1\r\nHost:a\r\n\r\n"),
    ],
)  # fmt: skip
def test_what_once_broke_a_reader(name: str, data: bytes) -> None:
    """Each stands for its kind."""
    assert broken_by(_BY_NAME[name], data) is None
