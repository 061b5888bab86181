"""Which missed bars are news, and which were known."""

import msgspec
import pytest

from benchmarks.published_engines import Group, Miss, held_out, judged, known_misses

_GROUP = Group(architecture="dense", gpu="g", model="m", measure="tokens/s", errors=[0.3])
_MISS = Miss(
    model="m", gpu="g", measure="tokens/s", rms=0.3, since="2026-11-28", reason="no figure", source="https://x"
)


def test_what_is_missed_today_was_known() -> None:
    """By the model and the table as they stand: so the command ends with 0, and anything else is news."""
    new, old = judged(held_out(), known_misses())
    assert new == []
    assert len(old) == len(known_misses())
    assert all(each.source.startswith("https://") and each.reason and each.since for each in known_misses())


@pytest.mark.parametrize(
    ("errors", "known", "new", "old"),
    [
        ([0.3], [], "m on g 30% of 15%", None),
        ([0.3], [_MISS], None, "known since 2026-11-28: no figure"),
        ([-0.31], [_MISS], None, "known since 2026-11-28"),
        ([0.4], [_MISS], "known as 30% since", None),
        ([0.1], [_MISS], "meets its bar now", None),
        ([0.1], [], None, None),
    ],
)
def test_only_what_is_new_or_worse_is_news(
    errors: list[float], known: list[Miss], new: str | None, old: str | None
) -> None:
    """A record that is not needed any more is, too: otherwise it would hide the next miss."""
    told = judged([msgspec.structs.replace(_GROUP, errors=errors)], known)
    assert [len(each) for each in told] == [int(new is not None), int(old is not None)]
    assert (new or "") in "".join(told[0])
    assert (old or "") in "".join(told[1])


def test_times_of_tokens_have_no_bar() -> None:
    """They are told beside throughput, and judged by nobody."""
    assert judged([msgspec.structs.replace(_GROUP, measure="first token")], []) == ([], [])
