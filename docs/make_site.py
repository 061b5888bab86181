"""Write the pages that `mkdocs.yml` makes a site of, into build/site/pages: these documents, the README and its neighbours, the generated
reference of commands, and copies of the files that they speak of. `make site` calls it; nothing is fetched.

A link that leads out of docs/ leads to the copy. The order of the navigation is that of the readers in docs/README.md.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote, unquote

from gateway.wiring.web_app import web_app

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
PAGES: Final = ROOT / "build" / "site" / "pages"
TOP: Final = {"README.md": "index.md", "ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages beside docs/, by the names that they get."""
_MORE: Final = ("CHANGELOG.md", "SECURITY.md")
_MOST_BYTES: Final = 2_000_000
_LINK: Final = re.compile(r"(\]\()([^()\s]+)(\))")
_ELSEWHERE: Final = ("http://", "https://", "mailto:", "#")
_ITEM: Final = re.compile(r"([-*]|\d+\.) ")
_FENCE: Final = re.compile(r"^(```|~~~)")
_COMMAND: Final = re.compile(r"#+ `(?P<name>[^`]+)`")
_CUT: Final = re.compile(r"\* `(?P<name>[^`]+)`: .*\.\.\.")
_STYLE: Final = """\
/* A word stays in one piece, and so does a key, up to most of a phone's width: the column is as wide, and the table scrolls within its own. */
.md-typeset table:not([class]) { table-layout: auto; }
.md-typeset table:not([class]) td code { word-break: normal; overflow-wrap: break-word; }
.md-typeset table:not([class]) td:first-child code { display: inline-block; max-width: 17rem; }
@media (max-width: 480px) {
  .md-typeset table:not([class]) td code { display: inline-block; max-width: 9rem; }
  .md-typeset table:not([class]) td:not(:first-child) { min-width: 8rem; }
}
"""


class LinkLost(Exception):
    """A page links to what is not there, or what no reader of the site may have."""


def page_of(path: PurePosixPath) -> PurePosixPath | None:
    """Return where a document of the repository stands in the site; None for what is no page."""
    if path.parts[:1] == ("docs",) and path.suffix == ".md":
        return (
            PurePosixPath("documentation.md") if path == PurePosixPath("docs/README.md") else path.relative_to("docs")
        )
    if len(path.parts) == 1 and path.name in (*TOP, *_MORE):
        return PurePosixPath(TOP.get(path.name, path.name.lower()))
    return None


def _place(document: PurePosixPath) -> PurePosixPath:
    found = page_of(document)
    if found is None:
        raise LinkLost(f"{document} is no page of the site")
    return found


def rewritten(text: str, document: PurePosixPath, copy: Callable[[PurePosixPath], PurePosixPath]) -> str:
    """Return a document's text with its links as they are in the site. `copy` gives the place of a file that is no page."""
    here = _place(document)

    def led(found: re.Match[str]) -> str:
        target = found[2]
        if target.startswith(_ELSEWHERE):
            return found[0]
        path, hash_, anchor = unquote(target).partition("#")
        wanted = _normal(document.parent / path)
        there = page_of(wanted) or copy(wanted)
        return f"{found[1]}{quote(_relative(there, here))}{hash_}{anchor}{found[3]}"

    return "\n".join(_lists_apart(_outside_code(text, lambda line: _LINK.sub(led, line))))


def _lists_apart(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines with an empty one before each list: without it, the site's Markdown takes the list for a part of the paragraph."""
    before = ""
    for line in lines:
        if _ITEM.match(line) and before.strip() and not _ITEM.match(before) and not before.startswith(" "):
            yield ""
        yield line
        before = line


def whole_sentences(told: str) -> str:
    """Return the reference of commands with each one's first sentence in the list of its group, which typer cuts off."""
    lines, sentences, group = told.split("\n"), dict[str, str](), "weighbridge"
    for place, line in enumerate(lines):
        if found := _COMMAND.fullmatch(line):
            sentences[found["name"]] = " ".join(lines[place + 1 : lines.index("**Usage**:", place)]).strip()
    for place, line in enumerate(lines):
        if found := _COMMAND.fullmatch(line):
            group = found["name"]
        elif (found := _CUT.fullmatch(line)) and (sentence := sentences.get(f"{group} {found['name']}")):
            lines[place] = f"* `{found['name']}`: {sentence.partition('. ')[0].rstrip('.')}."
    return "\n".join(lines)


def _outside_code(text: str, change: Callable[[str], str]) -> Iterator[str]:
    fenced = False
    for line in text.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        yield line if fenced or line.startswith("    ") else change(line)


def _normal(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and not parts:
            raise LinkLost(f"{path} leads out of the repository")
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)


def _relative(there: PurePosixPath, here: PurePosixPath) -> str:
    up = len(here.parent.parts)
    return "/".join([*[".."] * up, *there.parts])


class Site:
    """The folder of pages, as it is written."""

    def __init__(self, folder: Path = PAGES) -> None:
        self.folder = folder
        self.pages: list[PurePosixPath] = []

    def write(self) -> None:
        """Write all pages, in place of those of an earlier time."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name in (*TOP, *(each for each in _MORE if (ROOT / each).exists())):
            self._page(PurePosixPath(name))
        for document in sorted(DOCS.rglob("*.md")):
            self._page(PurePosixPath(document.relative_to(ROOT).as_posix()))
        for picture in sorted([*DOCS.glob("*.svg"), *(DOCS / "screens").glob("*.png")]):
            self._copied(picture, picture.relative_to(DOCS))
        (self.folder / "site.css").write_text(_STYLE)

    def command_reference(self) -> None:
        """Write the page of all commands, as typer tells them."""
        typer = [
            sys.executable,
            "-m",
            "typer",
            "gateway.cli",
            "utils",
            "docs",
            "--name",
            "weighbridge",
            "--title",
            "Commands",
        ]
        told = subprocess.run(typer, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        self._generated("commands.md", whole_sentences(told))

    def routes(self) -> None:
        """Write the OpenAPI document, for who generates clients, and a page that lists its routes."""
        document = web_app().openapi()
        (self.folder / "openapi.json").write_text(json.dumps(document, indent=1))
        lines = [
            "# Routes",
            "",
            "Everything but the models themselves; the whole is [openapi.json](openapi.json), OpenAPI 3.1.",
            "",
        ]
        by_tag: dict[str, list[str]] = {}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                tag = operation.get("tags", ["others"])[0]
                by_tag.setdefault(tag, []).append(f"| `{method.upper()} {path}` | {operation.get('summary', '')} |")
        for tag, rows in by_tag.items():
            lines += [f"## {tag.capitalize()}", "", "| route | what it does |", "|---|---|", *rows, ""]
        self._generated("routes.md", "\n".join(lines))

    def _page(self, document: PurePosixPath) -> None:
        text = rewritten((ROOT / document).read_text(), document, self._copy)
        there = _place(document)
        place = self.folder / there
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        self.pages.append(there)

    def _generated(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        self.pages.append(PurePosixPath(name))

    def _copy(self, path: PurePosixPath) -> PurePosixPath:
        """Copy a file of the repository; of a folder the page says the name, and its first file is copied."""
        source = ROOT / path
        if path.parts[:1] == ("docs",) and source.is_file():
            return PurePosixPath(*path.parts[1:])
        if source.is_dir():
            source = next((each for each in sorted(source.iterdir()) if each.is_file()), source)
            path = PurePosixPath(source.relative_to(ROOT).as_posix())
        if not source.is_file() or source.stat().st_size > _MOST_BYTES:
            raise LinkLost(f"{path} is no file that a page can be linked to")
        there = PurePosixPath("files") / path
        # A text is shown by the browser, whatever it is written in.
        there = there.with_name(f"{there.name}.txt")
        self._copied(source, Path(there))
        return there

    def _copied(self, source: Path, there: Path) -> None:
        place = self.folder / there
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)


def main() -> None:
    """Write the pages."""
    site = Site()
    site.write()
    site.command_reference()
    site.routes()
    print(f"{len(site.pages)} pages in {PAGES.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
