"""The folder in which the processes of one gateway meet."""

import stat
from pathlib import Path

from gateway.process.runtime_folder import RuntimeFolder, runtime_folder


def test_it_is_the_servers_own_and_goes_with_it(tmp_path: Path) -> None:
    """Nobody else may look into it, and nothing of it stays."""
    with runtime_folder(tmp_path) as folder:
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert folder.path.parent == tmp_path
        assert list(folder.metrics.iterdir()) == []
        folder.link.write_text("a socket")
    assert list(tmp_path.iterdir()) == []


def test_a_long_place_is_left_for_a_short_one(tmp_path: Path) -> None:
    """A socket's path has about a hundred bytes."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with runtime_folder(deep) as folder:
        assert len(str(folder.link).encode()) <= 100
        assert isinstance(folder, RuntimeFolder)
        assert folder.metrics.is_dir()
    assert not folder.path.exists()
    assert list(deep.iterdir()) == []
