"""Keys in files: which one is called with, and for how long the one before it stands by."""

import os
from pathlib import Path

import pytest

from providers.key_files import OVERLAP_S, REFUSED_S, KeyFiles


class _Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def _keys(path: Path, clock: _Clock) -> tuple[KeyFiles, str]:
    keys = KeyFiles({"env:A": "a"}.__getitem__, clock=clock, wall_s=clock)
    reference = f"file:{path}"
    assert keys.read(reference) == "old"
    return keys, reference


def _replace(path: Path, key: str) -> None:
    fresh = path.with_name("fresh")
    fresh.write_text(key)
    fresh.rename(path)


async def test_the_key_before_stands_by_for_the_overlap_alone(tmp_path: Path) -> None:
    """Afterwards a refused key is refused."""
    (path := tmp_path / "key").write_text("old")
    clock = _Clock()
    keys, reference = _keys(path, clock)
    assert await keys.after_refusal("old") is None
    _replace(path, "new")
    assert keys.look()
    assert keys.current(reference) == "new"
    assert await keys.after_refusal("new") == "old"
    assert await keys.after_refusal("old") == "new"
    clock.now += OVERLAP_S
    assert await keys.after_refusal("new") is None


async def test_a_refused_key_comes_second_for_a_while(tmp_path: Path) -> None:
    """Else each call would ask twice; and the new key is tried again by itself."""
    (path := tmp_path / "key").write_text("old")
    clock = _Clock()
    keys, _ = _keys(path, clock)
    _replace(path, "new")
    keys.look()
    keys.went_on("new", "old")
    assert keys.first("new") == "old"
    clock.now += REFUSED_S
    assert keys.first("new") == "new"


async def test_a_refusal_reads_the_file_before_the_next_look(tmp_path: Path) -> None:
    """And the next look tells of it, so that the catalog has the new key, too."""
    (path := tmp_path / "key").write_text("old")
    keys, _ = _keys(path, _Clock())
    _replace(path, "new")
    assert await keys.after_refusal("old") == "new"
    assert [keys.look(), keys.look()] == [True, False]


def test_a_file_that_is_written_over_is_read_when_it_rests(tmp_path: Path) -> None:
    """Half a key would be refused."""
    (path := tmp_path / "key").write_text("old")
    keys, reference = _keys(path, _Clock())
    path.write_text("ne")
    assert not keys.look()
    path.write_text("new")
    assert [keys.look(), keys.look()] == [False, True]
    assert keys.current(reference) == "new"


def test_a_file_that_is_configured_no_more_is_forgotten(tmp_path: Path) -> None:
    """Its key is no longer known, and other references pass by."""
    (path := tmp_path / "key").write_text("old")
    keys, _ = _keys(path, _Clock())
    assert keys.read("env:A") == "a"
    keys.keep(["env:A"])
    assert not keys.has_files
    assert not keys.knows("old")


@pytest.mark.parametrize("what", ["pipe", "long", "lines", "binary", "folder", "circle"])
def test_what_no_key_can_be_changes_nothing(tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """A pipe is not waited at, a long file is not cut, and the log says it once."""
    (path := tmp_path / "key").write_text("old")
    keys, reference = _keys(path, _Clock())
    odd = tmp_path / "odd"
    match what:
        case "pipe":
            os.mkfifo(odd)
        case "long":
            odd.write_bytes(b"k" * 70_000)
        case "lines":
            odd.write_text("new\r\nx-injected: 1")
        case "binary":
            odd.write_bytes(b"\xff\xfe")
        case "folder":
            path.unlink()
            odd.mkdir()
        case _:
            odd.symlink_to("key")
    odd.rename(path)
    for _ in range(3):
        assert not keys.look()
    assert keys.current(reference) == "old"
    assert len([each for each in caplog.messages if "cannot be read" in each]) == (0 if what == "circle" else 1)
    _replace_any(path)
    # Its number may be that of the first file, and then it has to rest.
    assert keys.look() or keys.look()
    assert keys.current(reference) == "new"


def _replace_any(path: Path) -> None:
    """Put the key `new` where anything may be."""
    if path.is_dir():
        path.rmdir()
    _replace(path, "new")
