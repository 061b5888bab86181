"""Kept responses open with the pepper, in their own place, and nowhere else."""

from typing import Any

import pytest

from accounts.keys import Pepper
from proxy.responses.stored.sealing import CannotOpen, Sealing

OLD = Pepper(id="old", secret=b"o" * 32)
NEW = Pepper(id="new", secret=b"n" * 32)
RECORD = b'{"secret": "words"}' * 50
BOUND: dict[str, Any] = {"max_bytes": 1_000_000}


def test_what_was_sealed_opens() -> None:
    """Nothing of it can be read, and it is smaller; no two sealings are alike."""
    sealing = Sealing((OLD,))
    sealed = sealing.seal("team_a", "resp_1", RECORD)
    assert b"secret" not in sealed
    assert len(sealed) < len(RECORD)
    assert sealed != sealing.seal("team_a", "resp_1", RECORD)
    assert sealing.open("team_a", "resp_1", "old", sealed, **BOUND) == RECORD


def test_a_new_pepper_reads_what_the_old_one_sealed() -> None:
    """As long as that is still listed."""
    sealed = Sealing((OLD,)).seal("team_a", "resp_1", RECORD)
    both = Sealing((NEW, OLD))
    assert (both.pepper_id, both.open("team_a", "resp_1", "old", sealed, **BOUND)) == ("new", RECORD)
    with pytest.raises(CannotOpen):
        Sealing((NEW,)).open("team_a", "resp_1", "old", sealed, **BOUND)


@pytest.mark.parametrize("place", [("team_b", "resp_1"), ("team_a", "resp_2")])
def test_a_record_in_anothers_place_does_not_open(place: tuple[str, str]) -> None:
    """Who can write to the database cannot give one team another's response."""
    sealing = Sealing((OLD,))
    sealed = sealing.seal("team_a", "resp_1", RECORD)
    with pytest.raises(CannotOpen):
        sealing.open(*place, "old", sealed, **BOUND)


@pytest.mark.parametrize("broken", [b"", b"short", bytes(100)])
def test_what_was_changed_does_not_open(broken: bytes) -> None:
    """Cut, empty or other bytes."""
    with pytest.raises(CannotOpen):
        Sealing((OLD,)).open("team_a", "resp_1", "old", broken, **BOUND)
