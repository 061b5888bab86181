# ruff: noqa: INP001, S603, T201 - run by its path alone, and it is a script of git and make
"""Make a release of the commit that a tag names: `make release VERSION=1.2.3`. What is not clean is refused, all of it at once; then
everything is built into dist/, with sums and a report of what was done. Nothing is pushed, and no tag is set.

`--dry` tells the checks and lists the steps. `note test` records that the commit that is checked out has passed `make test`, and so with the other
suites of `SUITES`.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

_VERSION: Final = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_PINNED: Final = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)", re.MULTILINE)
_REVISION: Final = re.compile(r"^(revision|down_revision)(?:: [^=]*)? = (.+)$", re.MULTILINE)
_LONGEST_S: Final = 3_600
_SAID_LINES: Final = 20
CHART: Final = "deploy/helm/weighbridge"
MIGRATIONS: Final = "gateway/migrations/versions"
SUITES: Final = ("test", "test-stories")
"""The targets of `make` that a release has passed."""
_CHART_VERSION: Final = (f"{CHART}/Chart.yaml", r"^version: (\S+)$")
PLACES: Final = (
    ("pyproject.toml", r'^version = "(.+)"$'),
    _CHART_VERSION,
    (f"{CHART}/Chart.yaml", r'^appVersion: "(.+)"$'),
    ("deploy/compose/compose.yaml", r"/weighbridge:(\d[^}\s]*)"),
    ("deploy/compose/.env.example", r"/weighbridge:(\d\S*)"),
    ("docs/deployment.md", r"/weighbridge:(\d\S*)"),
)
"""Where the version stands. A chart's or an image's that lags installs another release than it says."""
COMPILE: Final = "requirements/compile.sh"
_COMPILED: Final = re.compile(r"^compile .*--output-file requirements/([a-z]+)\.txt$", re.MULTILINE)
GENERATED: Final = (
    ("docs/configuration.md", ("-c", "from gateway.configuration.reference import _PAGE, written; print(written(_PAGE.read_text()), end='')")),
    ("docs/refusals.md", ("-m", "providers.refusals_page")),
    ("docs/providers.md", ("-m", "providers.providers_page")),
    ("docs/events.schema.json", ("-m", "weighbridge", "events", "schema")),
)  # fmt: skip
"""Pages that are written by a program, which prints them."""


def _run(arguments: Sequence[str], root: Path) -> str:
    """Run a program, and return what it says. Raises SubprocessError with the end of what it said of its failure."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        arguments, cwd=root, env=environment, check=False, capture_output=True, text=True, timeout=_LONGEST_S
    )
    if done.returncode != 0:
        said = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-_SAID_LINES:])
        raise subprocess.SubprocessError(f"`{' '.join(arguments)}` ended with {done.returncode}: {said}")
    return done.stdout


@dataclass
class Release:
    """One release of one tree."""

    root: Path
    version: str
    run: Callable[[Sequence[str], Path], str] = _run
    find: Callable[[str], str | None] = shutil.which
    files: list[str] = field(default_factory=list)
    """Names in dist/ that belong to it."""
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def dist(self) -> Path:
        return self.root / "dist"

    @property
    def image(self) -> str:
        return f"localhost/weighbridge:{self.version}"

    def text(self, path: str) -> str:
        return (self.root / path).read_text()

    def git(self, *arguments: str) -> str:
        return self.run(("git", *arguments), self.root).strip()

    def passed(self, suite: str) -> Path:
        return self.root / "build" / "tested" / f"{self.git('rev-parse', 'HEAD')}.{suite}"

    def add(self, *names: str) -> None:
        self.files += names


# What has to hold. Each returns what is wrong.


def a_version(release: Release) -> list[str]:
    if _VERSION.fullmatch(release.version) is None:
        return [f"`{release.version}` is no version such as 1.2.3 or 1.2.3rc1"]
    return []


def a_clean_tree(release: Release) -> list[str]:
    changed = release.git("status", "--porcelain").splitlines()
    return [f"not committed: {', '.join(line.strip() for line in changed[:5])}"] if changed else []


def its_tag_here(release: Release) -> list[str]:
    """One tag at this commit, and that of this version: of two, others would take either."""
    tag = f"v{release.version}"
    here = release.git("tag", "--points-at", "HEAD", "--list", "v*").split()
    wrong = [] if tag in here else [f"the tag {tag} is not at this commit; set it with `git tag -a {tag}`"]
    others = sorted(set(here) - {tag})
    return wrong + ([f"this commit is also tagged {', '.join(others)}"] if others else [])


def chart_version(version: str) -> str:
    """Return a version as Helm takes it, which is SemVer: of 1.2.3rc1, which PyPI takes, 1.2.3-rc.1."""
    return re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)


def one_version(release: Release) -> list[str]:
    wrong = []
    for path, pattern in PLACES:
        found = re.findall(pattern, release.text(path), re.MULTILINE)
        version = chart_version(release.version) if (path, pattern) == _CHART_VERSION else release.version
        wrong += [f"{path} says {each}, not {version}" for each in found if each != version]
        wrong += [] if found else [f"{path} has no version where one should stand"]
    return wrong


def section_of(changelog: str, heading: str) -> str | None:
    """Return what stands below a heading of the change log; None without the heading."""
    found = re.search(rf"^## {re.escape(heading)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return None if found is None else found[1].strip()


def a_changelog(release: Release) -> list[str]:
    changelog = release.text("CHANGELOG.md")
    wrong = (
        [] if section_of(changelog, release.version) else [f"CHANGELOG.md says nothing below `## {release.version}`"]
    )
    return wrong + (
        ["CHANGELOG.md still has lines below `## Unreleased`"] if section_of(changelog, "Unreleased") else []
    )


def compiled(script: str) -> dict[str, list[str]]:
    """Return the locks of the project itself, and the extras of pyproject.toml that each has beside the base."""
    return {line[1]: re.findall(r"--extra (\S+)", line[0]) for line in _COMPILED.finditer(script)}


def locks_in_step(release: Release) -> list[str]:
    """Each package that the project asks for is pinned, to a version that it allows. What they bring is not looked at."""
    project = tomllib.loads(release.text("pyproject.toml"))["project"]
    wrong = []
    for name, extras in compiled(release.text(COMPILE)).items():
        pinned = dict(_PINNED.findall(release.text(f"requirements/{name}.txt")))
        asked = [
            *project["dependencies"],
            *(each for extra in extras for each in project["optional-dependencies"][extra]),
        ]
        for requirement in map(Requirement, asked):
            version = pinned.get(requirement.name.lower())
            if requirement.name == project["name"] or (
                version and requirement.specifier.contains(version, prereleases=True)
            ):
                continue
            if version is None and requirement.marker is not None:
                continue
            wrong.append(f"requirements/{name}.txt has {version or 'no version'} for `{requirement}`; `make lock`")
    return wrong


def migrations_in_one_line(release: Release) -> list[str]:
    follows: dict[str, list[str]] = {}
    known = set()
    for path in sorted((release.root / MIGRATIONS).glob("v*.py")):
        said = dict(_REVISION.findall(path.read_text()))
        revision, before = said["revision"].strip("\"'"), said["down_revision"].strip("\"'")
        known.add(revision)
        follows.setdefault(before, []).append(path.name)
    wrong = [
        f"migrations part after {before}: {', '.join(names)}" for before, names in follows.items() if len(names) > 1
    ]
    return wrong + [
        f"{names[0]} follows {before}, which is not there"
        for before, names in follows.items()
        if before not in known | {"None"}
    ]


def generated_pages(release: Release) -> list[str]:
    wrong = []
    for path, arguments in GENERATED:
        if release.run((sys.executable, *arguments), release.root) != release.text(path):
            wrong.append(f"{path} is not what `python {' '.join(arguments)}` writes")
    return wrong


def tests_passed(release: Release) -> list[str]:
    missing = [suite for suite in SUITES if not release.passed(suite).exists()]
    return [f"`make {suite}` has not passed for this commit on this machine" for suite in missing]


CHECKS: Final = (
    a_version,
    a_clean_tree,
    its_tag_here,
    one_version,
    a_changelog,
    locks_in_step,
    migrations_in_one_line,
    generated_pages,
    tests_passed,
)


# What is done.


def _sums(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def packages(release: Release) -> None:
    """Build both wheels and the source distribution, made twice and the same."""
    python = str(release.root / ".venv-release/bin/python")

    def made() -> dict[str, str]:
        release.run((".ci/wheels", python), release.root)
        return _sums([*release.dist.glob("weighbridge-*.whl"), *release.dist.glob("weighbridge-*.tar.gz")])

    first, second = made(), made()
    if first != second:
        raise SystemExit(
            f"made twice, these differ: {sorted(name for name in first if first[name] != second.get(name))}"
        )
    check_packages(release, [*second])
    release.add(*second)


def check_packages(release: Release, names: Sequence[str]) -> None:
    """Look them over: a registry takes what it is given, and a wheel that is missing, or of another version, is noticed by users."""
    machines = [machine for machine in ("x86_64", "aarch64") if any(name.endswith(f"{machine}.whl") for name in names)]
    if len(machines) != 2 or f"weighbridge-{release.version}.tar.gz" not in names:  # noqa: PLR2004 - both machines
        raise SystemExit(f"a wheel for each machine and the sources were to be made, and there are {sorted(names)}")
    for name in (each for each in names if each.endswith(".whl")):
        with zipfile.ZipFile(release.dist / name) as wheel:
            told = wheel.read(f"weighbridge-{release.version}.dist-info/METADATA").decode()
        if f"\nVersion: {release.version}\n" not in told:
            raise SystemExit(f"{name} does not say that it is {release.version}")


def locks(release: Release) -> None:
    """Copy what it was tested with, for who installs it."""
    for name in ("base", "extras"):
        target = f"weighbridge-{release.version}-{name}.txt"
        shutil.copyfile(release.root / "requirements" / f"{name}.txt", release.dist / target)
        release.add(target)


def image(release: Release) -> None:
    """Build the image, as an archive that any registry takes. Its tag is the version, and no other."""
    if any(release.find(each) is None for each in ("buildah", "skopeo")):
        release.left_out["image"] = "there is no buildah or skopeo here"
        return
    name = f"weighbridge-{release.version}-image.tar"
    release.run(("make", "image", f"IMAGE={release.image}"), release.root)
    (release.dist / name).unlink(missing_ok=True)
    release.run(
        (
            "skopeo",
            "copy",
            "--quiet",
            "--insecure-policy",
            f"containers-storage:{release.image}",
            f"docker-archive:dist/{name}:{release.image}",
        ),
        release.root,
    )
    release.add(name)


def parts(release: Release) -> None:
    """List what the image is made of, under which licences, and why each package is there."""
    (release.dist / "dependencies.tsv").write_text(release.run((sys.executable, ".ci/dependencies.py"), release.root))
    release.add("dependencies.tsv")
    if "image" in release.left_out:
        release.left_out["sbom"] = "it is that of the image"
        return
    release.run((".ci/sbom", release.image, str(release.root / ".venv-release/bin/python")), release.root)
    release.add("weighbridge.spdx.json", "weighbridge.cdx.json", "licences.tsv")


def chart(release: Release) -> None:
    """Pack the chart: the same bytes from the same commit."""
    at = int(release.git("log", "-1", "--format=%ct"))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(release.git("ls-files", CHART).splitlines()):
            content = (release.root / name).read_bytes()
            entry = tarfile.TarInfo(f"weighbridge/{name.removeprefix(f'{CHART}/')}")
            entry.size, entry.mtime, entry.mode = len(content), at, 0o644
            archive.addfile(entry, io.BytesIO(content))
    name = f"weighbridge-chart-{release.version}.tgz"
    (release.dist / name).write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    release.add(name)


def notes(release: Release) -> None:
    """Write the change log's section."""
    (release.dist / "RELEASE_NOTES.md").write_text(f"{section_of(release.text('CHANGELOG.md'), release.version)}\n")
    release.add("RELEASE_NOTES.md")


STEPS: Final = (packages, locks, image, parts, chart, notes)


def refusals(release: Release, checks: Sequence[Callable[[Release], list[str]]] = CHECKS) -> list[str]:
    """Return all that is wrong."""
    wrong: list[str] = []
    for check in checks:
        try:
            wrong += check(release)
        except (OSError, subprocess.SubprocessError, KeyError) as error:
            wrong.append(f"{check.__name__.replace('_', ' ')}: {error}")
    return wrong


def make(release: Release, steps: Sequence[Callable[[Release], None]] = STEPS) -> dict[str, Any]:
    """Take the steps, and return the report that is written beside what they made. Nothing of another release stays in dist/: it would be
    pushed with this one's.
    """
    shutil.rmtree(release.dist, ignore_errors=True)
    release.dist.mkdir()
    seconds = {}
    for step in steps:
        begun = time.monotonic()
        step(release)
        seconds[step.__name__] = round(time.monotonic() - begun, 1)
        print(f"{step.__name__}: {seconds[step.__name__]} s", flush=True)
    if release.git("status", "--porcelain"):
        raise SystemExit("what was built has changed the tree, so it is not what the tag names")
    report = {
        "version": release.version,
        "commit": release.git("rev-parse", "HEAD"),
        "tree": release.git("rev-parse", "HEAD^{tree}"),
        "checks": [check.__name__ for check in CHECKS],
        "seconds": seconds,
        "left_out": release.left_out,
        "tools": {"python": platform.python_version(), **_versions(release, ("git", "buildah", "skopeo"))},
        "sha256": _sums(release.dist / name for name in release.files),
    }
    (release.dist / "release.json").write_text(json.dumps(report, indent=1) + "\n")
    sums = _sums(release.dist / name for name in (*release.files, "release.json"))
    (release.dist / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    return report


def _versions(release: Release, names: Iterable[str]) -> dict[str, str]:
    return {name: release.run((name, "--version"), release.root).strip() for name in names if release.find(name)}


def pushing(release: Release) -> list[str]:
    """Return the commands that push what was made; a registry of images is the owner's to name."""
    commands = [
        f"git push ORIGIN v{release.version}",
        f".venv-release/bin/twine upload dist/weighbridge-{release.version}{{-*.whl,.tar.gz}}",
    ]
    if "image" not in release.left_out:
        archive = f"dist/weighbridge-{release.version}-image.tar"
        commands.append(f"skopeo copy docker-archive:{archive} docker://REGISTRY/weighbridge:{release.version}")
    return [*commands, f"helm push dist/weighbridge-chart-{release.version}.tgz oci://REGISTRY/charts"]


def note(release: Release, suite: str) -> None:
    """Record that the commit has passed a suite, where the tree is the commit's. A tree without git has none."""
    if release.find("git") is None or not (release.root / ".git").exists() or a_clean_tree(release):
        return
    release.passed(suite).parent.mkdir(parents=True, exist_ok=True)
    release.passed(suite).touch()


def main(arguments: Sequence[str]) -> int:
    """Check, and make."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", help="such as 1.2.3, or `note`")
    parser.add_argument("suite", nargs="?", choices=SUITES, help="what `note` is about")
    parser.add_argument("--dry", action="store_true", help="check, and list the steps")
    parser.add_argument("--skip-image", action="store_true", help="without the image and its parts")
    given = parser.parse_args(arguments)
    release = Release(Path(__file__).parents[1], given.version)
    if given.version == "note":
        if given.suite is None:
            parser.error(f"which suite has passed: {', '.join(SUITES)}?")
        note(release, given.suite)
        return 0
    if given.skip_image:
        release.left_out["image"] = "it was not wanted (--skip-image)"
    # Without a version, that is all there is to tell.
    wrong = a_version(release) or refusals(release)
    for each in wrong:
        print(f"refused: {each}", file=sys.stderr)
    steps = [step for step in STEPS if step is not image or not given.skip_image]
    if given.dry:
        for step in steps:
            print(f"{step.__name__}: {(step.__doc__ or '').strip()}")
    elif not wrong:
        try:
            report = make(release, steps)
        except subprocess.SubprocessError as error:
            raise SystemExit(f"broken off: {error}") from None
        print(f"{len(report['sha256'])} files of {given.version} are in dist/; nothing was pushed. To do so:")
        print("\n".join(f"  {each}" for each in pushing(release)))
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
