"""What an image is built from: the same as the wheel, and nothing that a checkout has beside it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
_PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
_STEPS: Final = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", "")
_LAST: Final = _STEPS[_STEPS.rindex("\nFROM ") :]
"""The stage that is shipped."""


def part(*names: str) -> dict[str, str]:
    """Package → version of what `requirements/select.py` gives."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "requirements" / "select.py"), *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", done.stdout, re.MULTILINE))


def test_only_what_the_wheel_has_gets_in() -> None:
    """A `.env`, a database or a pepper that lies in the checkout is in no layer."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line.removeprefix("!/") for line in lines if line.startswith("!")}
    assert {each for each in let_in if (ROOT / each).is_dir()} == set(
        _PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    )
    assert all((ROOT / each).exists() for each in let_in)


EXTRAS: Final = ("litellm", "otel", "kv-events", "s3", "sso", "kafka", "nats")


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_what_it_needs_and_no_other(extra: str) -> None:
    """What one extra needs of the lock is found by the lock's own words, with its hashes."""
    lock = str(ROOT / "requirements" / "extras.txt")
    own = part(lock, extra)
    named = {re.split(r"[>=!\[]", each)[0] for each in _PROJECT["project"]["optional-dependencies"][extra]}
    assert named <= own.keys()
    others = set().union(*(part(lock, each).keys() for each in EXTRAS if each != extra))
    assert own.keys() - others
    base = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements" / "base.txt").read_text(), re.MULTILINE))
    everything = set(re.findall(r"^([a-z0-9._-]+)==", Path(lock).read_text(), re.MULTILINE))
    assert base | own.keys() | others == everything


def test_an_unknown_extra_is_refused() -> None:
    """A misspelt name must not become an image without it."""
    with pytest.raises(AssertionError, match="not in the lock: otle"):
        part(str(ROOT / "requirements" / "extras.txt"), "sso", "otle")


def test_what_others_found_missing_in_images() -> None:
    """It runs as nobody in particular, as its own first process, asked by a command of its own; its volume is there for that user."""
    assert "\nUSER 65532:65532\n" in _LAST
    assert "\nRUN " not in _LAST, "a base without a shell, or for another machine, will do"
    assert '\nENTRYPOINT ["weighbridge"]\n' in _LAST, "a shell would not pass signals on"
    assert "\nSTOPSIGNAL SIGTERM\n" in _LAST
    assert 'CMD ["weighbridge", "health"]' in _LAST
    assert not re.search(r"curl|wget", _STEPS)
    assert "\nVOLUME /var/lib/weighbridge\n" in _LAST
    assert "chown 65532:0 /made/var/lib/weighbridge && chmod 0770" in _STEPS
    assert not re.search(r"(PEPPER|PASSWORD|SECRET|API_KEY)=", _STEPS)
    assert _STEPS.count("--require-hashes") + _STEPS.count("--no-index") == len(re.findall(r"pip .*?install ", _STEPS))
