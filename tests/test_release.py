"""A release: what is not clean is refused, and what is built is what the tag names. Each refusal is one that others' users had to report."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[1]
_VERSION: Final = "0.2.0"
_FOLDERS: Final = ("deploy/helm/weighbridge", "gateway/migrations/versions")


def script(name: str) -> ModuleType:
    """A script of .ci, which is no package."""
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


RELEASE: Final = script("release")
_LOCKS: Final = tuple(f"requirements/{name}.txt" for name in RELEASE.compiled((ROOT / RELEASE.COMPILE).read_text()))
_TOUCHED: Final = (
    *_LOCKS,
    RELEASE.COMPILE,
    "docs/deployment.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "deploy/compose/compose.yaml",
    "deploy/compose/.env.example",
)


def git(root: Path, *arguments: str) -> str:
    who = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.com",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "tag.gpgsign=false",
    )
    done = subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def replace(root: Path, path: str, old: str, new: str) -> None:
    text = (root / path).read_text()
    assert old in text, (path, old)
    (root / path).write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of what the checks look at, as of the version's commit."""
    root = tmp_path_factory.mktemp("sound")
    for path in _TOUCHED:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, root / path)
    for path in _FOLDERS:
        shutil.copytree(ROOT / path, root / path, ignore=shutil.ignore_patterns("__pycache__"))
    now = RELEASE.re.findall(RELEASE.PLACES[0][1], (root / "pyproject.toml").read_text(), RELEASE.re.MULTILINE)[0]
    for path in dict(RELEASE.PLACES):
        replace(root, path, now, _VERSION)
    replace(root, "CHANGELOG.md", "## Unreleased\n", f"## Unreleased\n\n## {_VERSION} (2026-12-01)\n")
    (root / ".gitignore").write_text("build\ndist\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "a")
    return root


@pytest.fixture
def tree(sound: Path, tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    shutil.copytree(sound, root)
    return root


def release(root: Path, version: str = _VERSION, **given: Any) -> Any:
    """With programs that write pages answered for: they are run by other tests."""

    def run(arguments: Sequence[str], at: Path) -> str:
        if arguments[0] == "git":
            return git(at, *arguments[1:]) + "\n"
        pages = [path for path, written_by in RELEASE.GENERATED if arguments[1:] == written_by]
        return (at / pages[0]).read_text() if pages else ""

    return RELEASE.Release(root, version, **({"run": run, "find": {"git": "git"}.get} | given))


CHECKS: Final = [check for check in RELEASE.CHECKS if check is not RELEASE.generated_pages]


def finish(root: Path) -> None:
    """Commit, tag, and note that the tests have passed."""
    git(root, "add", ".")
    git(root, "commit", "-q", "--allow-empty", "-m", "b")
    git(root, "tag", "-a", f"v{_VERSION}", "-m", "c")
    note(root)


def note(root: Path) -> None:
    for suite in RELEASE.SUITES:
        RELEASE.note(release(root), suite)


def test_what_is_clean_is_not_refused(tree: Path) -> None:
    """Nor is anything else needed."""
    finish(tree)
    assert RELEASE.refusals(release(tree), CHECKS) == []


def _untracked(root: Path) -> None:
    (root / "new.py").write_text("")


def _changed(root: Path) -> None:
    replace(root, "CHANGELOG.md", "# Changelog", "# Log")


def _tag_elsewhere(root: Path) -> None:
    git(root, "commit", "-q", "--allow-empty", "-m", "later")
    note(root)


def _two_tags(root: Path) -> None:
    git(root, "tag", f"v{_VERSION}rc1")


def _untested(root: Path) -> None:
    shutil.rmtree(root / "build")


def _without_stories(root: Path) -> None:
    release(root).passed("test-stories").unlink()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_untracked, ["not committed: ?? new.py"]),
        (_changed, ["not committed: M CHANGELOG.md"]),
        # The tag was set on another commit, and the wheel was of the version before.
        (_tag_elsewhere, ["the tag v0.2.0 is not at this commit; set it with `git tag -a v0.2.0`"]),
        # Of two tags at one commit the tools took the candidate's.
        (_two_tags, ["this commit is also tagged v0.2.0rc1"]),
        (_untested, [f"`make {each}` has not passed for this commit on this machine" for each in RELEASE.SUITES]),
        (_without_stories, ["`make test-stories` has not passed for this commit on this machine"]),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_tree_that_is_not_what_the_tag_names(tree: Path, spoil: Callable[[Path], None], told: list[str]) -> None:
    """Each is refused, with what to do."""
    finish(tree)
    spoil(tree)
    assert RELEASE.refusals(release(tree), CHECKS) == told


_CHART: Final = "deploy/helm/weighbridge/Chart.yaml"
_LOCK: Final = "requirements/base.txt"


@pytest.mark.parametrize(
    ("path", "old", "new", "told"),
    [
        ("pyproject.toml", f'version = "{_VERSION}"', 'version = "0.1.9"', "pyproject.toml says 0.1.9, not 0.2.0"),
        # A chart that lags installs an image of years ago.
        (_CHART, f'appVersion: "{_VERSION}"', 'appVersion: "0.1.9"', f"{_CHART} says 0.1.9, not 0.2.0"),
        (_CHART, f"\nversion: {_VERSION}", "\nversion: 0.1.9", f"{_CHART} says 0.1.9, not 0.2.0"),
        (_CHART, f'appVersion: "{_VERSION}"', "", f"{_CHART} has no version where one should stand"),
        ("deploy/compose/compose.yaml", f":{_VERSION}", ":0.1.9", "deploy/compose/compose.yaml says 0.1.9, not 0.2.0"),
        ("CHANGELOG.md", f"## {_VERSION}", "## 0.2.00", "CHANGELOG.md says nothing below `## 0.2.0`"),
        ("CHANGELOG.md", f"## {_VERSION} (2026-12-01)\n", f"## {_VERSION}\n\n## 0.1.0\n", "CHANGELOG.md says nothing below `## 0.2.0`"),
        ("CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n- More.\n", "CHANGELOG.md still has lines below `## Unreleased`"),
        (_LOCK, "\nalembic==", "\nalembicc==", f"{_LOCK} has no version for `alembic>=1.18`; `make lock`"),
        (_LOCK, "\nalembic==1.", "\nalembic==0.1.", "for `alembic>=1.18`; `make lock`"),
        ("gateway/migrations/versions/v0050_events.py", 'down_revision = "0049"', 'down_revision = "0048"', "migrations part after 0048"),
        ("gateway/migrations/versions/v0050_events.py", 'down_revision = "0049"', 'down_revision = "0149"', "v0050_events.py follows 0149, which is not there"),
    ],
)  # fmt: skip
def test_a_commit_that_is_not_the_version(tree: Path, path: str, old: str, new: str, told: str) -> None:
    """The one thing that is wrong is told."""
    replace(tree, path, old, new)
    finish(tree)
    wrong = RELEASE.refusals(release(tree), CHECKS)
    assert len(wrong) == 1
    assert told in wrong[0]


def test_each_place_has_this_trees_version() -> None:
    """Always, not on the day of a release alone."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert RELEASE.one_version(release(ROOT, version)) == []


@pytest.mark.parametrize(
    ("version", "charts"),
    [("0.2.0", "0.2.0"), ("0.2.0rc1", "0.2.0-rc.1"), ("1.2.3a10", "1.2.3-a.10"), ("1.2.3b2", "1.2.3-b.2")],
)
def test_a_candidate_is_called_in_its_chart_as_helm_wants_it(version: str, charts: str) -> None:
    """Helm loads no chart whose version is `0.2.0rc1`, and PyPI takes no `0.2.0-rc.1`; the tag of the image is PyPI's."""
    assert RELEASE.chart_version(version) == charts


def test_every_extra_of_a_lock_is_looked_at() -> None:
    """One that was left out could be pinned to what pyproject.toml does not allow."""
    compiled = RELEASE.compiled((ROOT / RELEASE.COMPILE).read_text())
    assert compiled.keys() >= {"base", "extras", "dev", "demo"}
    assert compiled["base"] == []
    image = re.findall(r"requirements/extras.txt has: (.+)\.", (ROOT / "deploy/Containerfile").read_text())
    assert compiled["extras"] == image[0].split()


@pytest.mark.parametrize("version", ["v0.2.0", "0.2", "0.2.0.dev1", "0.2.0+local", "", "latest"])
def test_what_is_no_version(tree: Path, version: str) -> None:
    """A registry takes none of these, or an image's users could not tell which they have."""
    assert RELEASE.a_version(release(tree, version)) == [f"`{version}` is no version such as 1.2.3 or 1.2.3rc1"]


def test_pages_that_were_not_written_anew(tree: Path) -> None:
    """Those that a program writes."""
    for path, _ in RELEASE.GENERATED:
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_text("as it was")
    assert RELEASE.generated_pages(release(tree)) == []
    told = RELEASE.generated_pages(release(tree, run=lambda _arguments, _root: "as it is"))
    assert len(told) == len(RELEASE.GENERATED)


def test_a_commit_with_changes_is_not_noted_as_tested(tree: Path) -> None:
    """What passed was not the commit."""
    finish(tree)
    shutil.rmtree(tree / "build")
    _untracked(tree)
    note(tree)
    assert not release(tree).passed("test").exists()


def _wheel(path: Path, version: str) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"weighbridge-{_VERSION}.dist-info/METADATA", f"Name: weighbridge\nVersion: {version}\n\n")


def _packages(root: Path, made: Sequence[str], said: str = _VERSION, *, differ: bool = False) -> Any:
    """A release whose build of packages makes these."""
    times = 0

    def run(arguments: Sequence[str], at: Path) -> str:
        nonlocal times
        if arguments[0] == "git":
            return git(at, *arguments[1:])
        times += 1
        for name in made:
            _wheel(at / "dist" / name, said)
            with (at / "dist" / name).open("ab") as file:
                file.write(str(times).encode() if differ else b"")
        return ""

    (root / "dist").mkdir(exist_ok=True)
    return release(root, run=run)


_MADE: Final = (
    *(f"weighbridge-{_VERSION}-py3-none-manylinux_2_17_{machine}.whl" for machine in ("x86_64", "aarch64")),
    f"weighbridge-{_VERSION}.tar.gz",
)


@pytest.mark.parametrize(
    ("made", "said", "differ", "told"),
    [
        (_MADE[:1], _VERSION, False, "a wheel for each machine"),
        (_MADE[:2], _VERSION, False, "a wheel for each machine"),
        (_MADE, "0.1.9", False, "does not say that it is 0.2.0"),
        (_MADE, _VERSION, True, "made twice, these differ"),
    ],
)
def test_packages_that_are_not_whole(tree: Path, made: tuple[str, ...], said: str, differ: bool, told: str) -> None:
    """A registry never takes a file again."""
    with pytest.raises(SystemExit, match=told):
        RELEASE.packages(_packages(tree, made, said, differ=differ))


def test_what_is_made_is_summed_and_told(tree: Path) -> None:
    """With what was left out and why; the chart is the same twice, and the tree is as it was."""
    finish(tree)
    one = _packages(tree, _MADE)
    (tree / "dist" / "weighbridge-0.1.9-image.tar").write_text("of the release before")
    one.left_out["image"] = "it was not wanted"
    steps = [step for step in RELEASE.STEPS if step is not RELEASE.image]
    report = RELEASE.make(one, steps)
    assert report["left_out"] == {"image": "it was not wanted", "sbom": "it is that of the image"}
    assert (report["version"], report["commit"]) == (_VERSION, git(tree, "rev-parse", "HEAD"))
    chart = f"weighbridge-chart-{_VERSION}.tgz"
    assert {*_MADE, chart, "RELEASE_NOTES.md", "dependencies.tsv"} <= report["sha256"].keys()
    listed = (tree / "dist" / "SHA256SUMS").read_text()
    assert {path.name for path in (tree / "dist").iterdir()} == {*report["sha256"], "release.json", "SHA256SUMS"}
    assert not any("image" in command for command in RELEASE.pushing(one))
    assert listed.count("\n") == len(report["sha256"]) + 1
    assert json.loads((tree / "dist" / "release.json").read_text()) == report
    assert (
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tree / "dist", check=False).returncode
        == 0
    )
    before = (tree / "dist" / chart).read_bytes()
    (tree / "deploy/helm/weighbridge/values.yaml").touch()
    RELEASE.chart(one)
    assert (tree / "dist" / chart).read_bytes() == before
    assert (tree / "dist" / "RELEASE_NOTES.md").read_text().startswith("- ")
    assert git(tree, "status", "--porcelain") == ""


def test_an_image_is_left_out_only_where_it_cannot_be_made(tree: Path) -> None:
    """And that is told."""
    one = release(tree)
    RELEASE.image(one)
    assert one.left_out == {"image": "there is no buildah or skopeo here"}


def test_what_fails_says_why(tmp_path: Path) -> None:
    """Builds take minutes, so their own words are wanted the first time."""
    one = RELEASE.Release(tmp_path, _VERSION)
    program = "import sys; print('made'); sys.exit('no space left')"
    with pytest.raises(subprocess.SubprocessError, match=r"ended with 1: no space left$"):
        one.run((sys.executable, "-c", program), tmp_path)
    told = RELEASE.refusals(one, [RELEASE.a_clean_tree])
    assert "not a git repository" in told[0]


def test_a_dry_run_lists_the_steps() -> None:
    """It makes nothing, and says what would be refused."""
    done = subprocess.run(
        [sys.executable, ".ci/release.py", "latest", "--dry"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [step.__name__ for step in RELEASE.STEPS]
    assert "refused: `latest` is no version" in done.stderr
    assert done.returncode == 1


def test_each_dependency_has_its_reason() -> None:
    """Somebody asked for it, or it is pulled by one that is in the list."""
    told = subprocess.run([sys.executable, ".ci/dependencies.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    rows = [line.split("\t") for line in told.stdout.splitlines()]
    names = {row[0] for row in rows}
    assert len(rows) > 50
    for name, _version, licence, lock, why in rows:
        assert licence, name
        assert lock in {"base", "extras"}
        assert why, name
        assert all(each == "asked for" or each in names for each in why.split(", ")), (name, why)
