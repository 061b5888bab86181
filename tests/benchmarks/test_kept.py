"""Long benchmarks that go on where they were broken off."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.kept import Kept, fingerprint


class Figure(msgspec.Struct, frozen=True):
    seconds: float


def kept(folder: Path, sources: str = "a") -> Kept[Figure]:
    return Kept(folder / "figures.json", Figure, sources, clock=iter(range(0, 1_000, 60)).__next__)


def test_what_is_known_is_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a run that was broken off; how far it is, and how long the rest may take, is told."""
    measured: list[str] = []

    def measure(name: str) -> Figure:
        if name == "c" and measured.count("c") == 0:
            measured.append(name)
            raise KeyboardInterrupt
        measured.append(name)
        return Figure(len(measured))

    with pytest.raises(KeyboardInterrupt):
        list(kept(tmp_path).each(["a", "b", "c"], measure))
    assert capsys.readouterr().err.splitlines() == ["1 of 3; about 2 min more", "2 of 3; about 1 min more"]
    assert list(kept(tmp_path).each(["a", "b", "c"], measure)) == [
        ("a", Figure(1)), ("b", Figure(2)), ("c", Figure(4)),
    ]  # fmt: skip
    assert measured == ["a", "b", "c", "c"]
    assert "2 of 3 are known" in capsys.readouterr().err


def test_other_sources_are_measured_anew(tmp_path: Path) -> None:
    """As the figures may be others; so are those of a file that cannot be read, or has another form."""
    kept(tmp_path).of("a", lambda: Figure(1))
    assert kept(tmp_path, "b").get("a") is None
    assert kept(tmp_path).get("a") == Figure(1)
    for text in ('{"a": {"sources": "a", "found": {"minutes": 1}}}', "[{}]", "half of a f"):
        (tmp_path / "figures.json").write_text(text)
        assert kept(tmp_path).get("a") is None
        assert kept(tmp_path).of("a", lambda: Figure(3)) == Figure(3)


def test_a_fingerprint_is_of_what_files_hold(tmp_path: Path) -> None:
    """Of the balancer's own as well as of a trace; one that is not there is none."""
    trace = tmp_path / "trace.csv"
    absent = fingerprint(trace)
    trace.write_text("1")
    assert absent == fingerprint() != fingerprint(trace)
    before = fingerprint(trace)
    trace.write_text("2")
    assert fingerprint(trace) != before
