"""A pepper in a file."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from accounts.errors import UnusablePepper
from accounts.pepper_file import read_or_make_pepper


def test_it_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    """The second start reads what the first one made, and nobody else may."""
    path = tmp_path / "var" / "pepper"
    made = read_or_make_pepper(path)
    assert read_or_make_pepper(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["pepper"]


def test_starts_at_once_agree(tmp_path: Path) -> None:
    """Several starting together all get the same pepper."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: read_or_make_pepper(tmp_path / "pepper"), range(32)))
    assert len({pepper.secret for pepper in made}) == 1


@pytest.mark.parametrize("content", ["", "not hexadecimal", "abcd"])
def test_a_bad_file_is_refused(tmp_path: Path, content: str) -> None:
    """A file that holds no usable pepper is refused, and not replaced."""
    path = tmp_path / "pepper"
    path.write_text(content)
    with pytest.raises(UnusablePepper):
        read_or_make_pepper(path)
    assert path.read_text() == content


@pytest.mark.parametrize(("content", "said"), [("", "is empty"), ("\n", "is empty"), ("abcd\n", "is cut short")])
def test_a_file_that_was_cut_says_what_to_do(tmp_path: Path, content: str, said: str) -> None:
    """With its name; and it is left as it is."""
    path = tmp_path / "pepper"
    path.write_text(content)
    with pytest.raises(UnusablePepper, match=f"{path} {said}: 64 hexadecimal digits are expected. Put the file back"):
        read_or_make_pepper(path)
    assert path.read_text() == content
