"""Scripts that run inside Redis."""

import hashlib
from pathlib import Path

import pytest

import proxy.shared.redis.scripts
from proxy.shared.redis.scripts import script


@pytest.mark.parametrize(
    "path", sorted(Path(proxy.shared.redis.scripts.__file__).parent.glob("*.lua")), ids=lambda path: path.stem
)
def test_a_script_is_known_by_the_hash_of_its_text(path: Path) -> None:
    """Redis computes the same one, so it can be called by it without being sent."""
    found = script(path.stem)
    assert found.text == path.read_text()
    assert found.sha == hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
    assert script(path.stem) is found


def test_an_unknown_script_is_told_at_once() -> None:
    """Not only when it is first called."""
    with pytest.raises(FileNotFoundError):
        script("nothing")
