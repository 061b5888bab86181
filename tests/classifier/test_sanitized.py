"""The compiled loops read what strangers send: compilers' own checks of memory and arithmetic watch them at it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_build import LIBRARY, SOURCE, compile_library

ROOT = Path(__file__).parents[2]
SECONDS = "10"


def runtime(name: str) -> str | None:
    """A sanitizer's library, which has to be in the process before Python."""
    if shutil.which("gcc") is None:
        return None
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return found if Path(found).is_absolute() else None


@pytest.mark.long
def test_no_prompt_reads_or_writes_beyond_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor overflows a sum; numpy's arrays are watched, too, as they come from the same allocator."""
    libraries = [found for name in ("libasan.so", "libubsan.so") if (found := runtime(name)) is not None]
    if len(libraries) < 2:
        pytest.skip("no gcc with its sanitizers here")
    for each in (SOURCE, LIBRARY):
        (tmp_path / each).parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / SOURCE, tmp_path / SOURCE)
    monkeypatch.setenv("CC", "gcc -fsanitize=address,undefined -fno-sanitize-recover=undefined -g")
    assert compile_library(tmp_path) is None
    environ = {
        **os.environ,
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.classifier.sanitized", str(tmp_path / LIBRARY), SECONDS]
    ran = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-3_000:]
    assert int(ran.stdout) > 100
