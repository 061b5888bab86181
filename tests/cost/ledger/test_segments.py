"""The journal's lines, and who may recover whose."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.ledger.segments import (
    BootLock,
    DeadJournal,
    Drained,
    JournalReader,
    boots,
    decode_drained,
    decode_line,
    encode_drained,
    encode_line,
    end_of,
    is_alive,
    journals,
    lines_of,
    read_drained,
    read_segment,
    segment_path,
    segments_of,
)
from tests.cost.entries import reserve, settle


@given(st.text(max_size=50), st.none() | st.integers(-(2**63), 2**63 - 1), st.floats(0, 1))
def test_a_line_is_the_entry(reason: str, cost: int | None, complexity: float) -> None:
    """An entry survives being written as a line, whatever is in it, and the line has one newline."""
    entry = settle(reason=reason, cost_nanousd=cost, complexity=complexity, flags=("a", "b"))
    line = encode_line(entry)
    assert decode_line(line) == entry
    assert line.count(b"\n") == 1


@given(st.data())
def test_a_damaged_line_is_noticed(data: st.DataObject) -> None:
    """A line that was cut or has a changed byte is never read as an entry."""
    line = encode_line(reserve())
    place = data.draw(st.integers(0, len(line) - 1))
    assert decode_line(line[:place]) is None
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != line[place]))
    assert decode_line(line[:place] + bytes([byte]) + line[place + 1 :]) is None


@given(st.binary(max_size=100))
def test_no_other_bytes_are_an_entry(junk: bytes) -> None:
    """Whatever stands in a file, reading it does not raise."""
    assert decode_line(junk) is None
    assert decode_line(lines_of((junk,))) is None


@pytest.mark.parametrize("body", [b'{"\xff":1}', b"[" * 10_000, b"\xff"])
def test_a_line_with_a_right_sum_and_no_entry_hides_only_itself(body: bytes) -> None:
    assert decode_line(lines_of((body,))) is None


def test_a_torn_line_hides_only_itself(tmp_path: Path) -> None:
    """The lines before and after a torn one are read."""
    path = segment_path(tmp_path, "dead", 0)
    first, second, third = (encode_line(reserve(name)) for name in ("a", "b", "c"))
    path.write_bytes(first + second[:-20] + b"\n" + third + first[:-1])
    found = [entry and entry.request_id for entry in read_segment(path)]
    assert found == ["a", None, "c", None]


def test_segments_are_read_in_order(tmp_path: Path) -> None:
    """The tenth segment comes after the second, and other processes' do not come at all."""
    for number in (10, 2, 0):
        segment_path(tmp_path, "dead", number).touch()
    segment_path(tmp_path, "dead2", 1).touch()
    (tmp_path / "notes.txt").touch()
    assert [path.name for path in segments_of(tmp_path, "dead")] == [f"boot-dead-{n}.log" for n in (0, 2, 10)]
    assert boots(tmp_path) == ["dead", "dead2"]


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    """While one holds it nobody else gets it; after it was let go the next does."""
    first = BootLock.take(tmp_path, "a")
    assert first is not None
    assert BootLock.take(tmp_path, "a") is None
    assert DeadJournal.claim(tmp_path, "a") is None
    first.release(delete=False)
    second = DeadJournal.claim(tmp_path, "a")
    assert second is not None
    second.close(delete=True)
    assert list(tmp_path.iterdir()) == []


def test_who_lives_holds_a_lock(tmp_path: Path) -> None:
    """Looking takes nothing away, and finds nobody where there is no file."""
    assert not is_alive(tmp_path, "a")
    lock = BootLock.take(tmp_path, "a")
    assert lock is not None
    assert is_alive(tmp_path, "a")
    lock.release(delete=False)
    assert not is_alive(tmp_path, "a")
    again = BootLock.take(tmp_path, "a")
    assert again is not None
    again.release(delete=True)


@given(st.binary(max_size=100), st.integers(0, 4095))
def test_a_damaged_place_is_not_believed(junk: bytes, at: int) -> None:
    """How far a journal is drained is known from a whole file or not at all."""
    content = encode_drained(Drained(3, 70_000, 9))
    assert decode_drained(content) == Drained(3, 70_000, 9)
    assert decode_drained(junk) is None
    assert decode_drained(content[:at]) is None
    changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    assert decode_drained(changed) is None


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 7), st.booleans())
def test_a_journal_is_read_whole_in_pieces(lengths: list[int], most: int, ended: bool) -> None:
    """Whatever its files and however small the pieces: every line once, in order, and the place is behind the last."""
    with tempfile.TemporaryDirectory() as name:
        folder, written = Path(name), 0
        for number, length in enumerate(lengths):
            lines = [encode_line(reserve(f"req_{written + place}")) for place in range(length)]
            segment_path(folder, "me", 2 * number).write_bytes(b"".join(lines))
            written += length
        reader, found = JournalReader(folder, "me", Drained(), None), []
        numbers = journals(folder)["me"]
        while (piece := reader.read(numbers, most, ended=ended)).entries:
            assert len(piece.entries) <= most
            found += [entry.request_id for entry in piece.entries]
            reader.took(piece.upto)
        assert found == [f"req_{number}" for number in range(written)]
        assert reader.place.place == end_of(folder, "me", numbers)
        assert read_drained(folder, "me") == reader.place
        assert (reader.place.lines, reader.place.total) == (lengths[-1], written)
