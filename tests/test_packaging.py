"""What is installed: pinned by hash, from nowhere in particular, and small at the base."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ("base", "build", "demo", "dev", "extras", "neighbours", "release", "weights")


def pinned(name: str) -> dict[str, str]:
    """Package → version of a lock; a package may be there in several versions for several Pythons."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)", text, re.MULTILINE))


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_with_hashes_and_no_index_is_named(name: str) -> None:
    """A lock that named a host would bind everybody to it."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries = [entry for entry in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE) if entry.strip()]
    assert entries
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)
    assert not re.search(r"https?://|--index|--extra-index|--find-links", text)


def test_the_base_stays_small() -> None:
    """What only training, the demo or some providers need is not in it."""
    assert (
        not {"torch", "pandas", "litellm", "scikit-learn", "onnx", "openai", "xllamacpp", "pytest"}
        & pinned("base").keys()
    )


@pytest.mark.parametrize("name", ["base", "extras"])
def test_what_runs_has_no_build_tools(name: str) -> None:
    """What builds a wheel is a lock of its own, whose packages nothing else brings."""
    assert {"hatchling", "editables"} <= pinned("build").keys()
    own = pinned("build").keys() - {"packaging"}
    assert not own & pinned(name).keys()
    assert not {"pip", "setuptools", "wheel", "auditwheel", "twine", "ziglang"} & pinned(name).keys()


def test_the_malicious_litellm_releases_cannot_come_back() -> None:
    """1.82.7 and 1.82.8 were uploaded by a thief; the lock is later and the range excludes them."""
    version = tuple(int(part) for part in pinned("dev")["litellm"].split("."))
    assert version > (1, 82, 8)
    project = (ROOT / "pyproject.toml").read_text()
    assert "!=1.82.7" in project
    assert "!=1.82.8" in project


def test_smaller_locks_agree_with_the_largest() -> None:
    """One environment serves the demo and development."""
    largest = pinned("dev")
    for name in ("base", "build", "demo", "extras"):
        assert {package: version for package, version in pinned(name).items() if largest.get(package) != version} == {}
