"""The documents: every link leads somewhere, every page is in the index, and every picture is shown."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pytest

from benchmarks.screens import SCREENS

ROOT: Final = Path(__file__).parents[1]
DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
_HEADING: Final = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
_CODE: Final = re.compile(r"^(```|~~~).*?^\1|^(?: {4}).*?$", re.MULTILINE | re.DOTALL)
_ELSEWHERE: Final = ("http://", "https://", "mailto:")


def prose(document: Path) -> str:
    """Without blocks of code: what looks like a link or a heading there is none."""
    return _CODE.sub("", document.read_text())


def links(document: Path) -> Iterator[tuple[Path, str]]:
    """Where each relative link leads to: a file or folder, and the anchor in it."""
    for target in _LINK.findall(prose(document)):
        if not target.startswith(_ELSEWHERE):
            path, _, anchor = unquote(target).partition("#")
            yield (document.parent / path).resolve() if path else document, anchor


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings; a second one of the same words gets a number."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(prose(document)):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[slug] = found.get(slug, 0) + 1
    return {slug if nth == 0 else f"{slug}-{nth}" for slug, count in found.items() for nth in range(count)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    """Files and folders of the repository are there, and so are the headings that anchors name."""
    dead = [
        f"{path}#{anchor}"
        for path, anchor in links(document)
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path))
    ]
    assert dead == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_told_twice(document: Path) -> None:
    """No two long lines of a document begin alike, as where two changes of one paragraph were both kept. The list of keys, which is generated, may."""
    written = prose(document).partition("\n## Keys\n")[0]
    begun = Counter(line.strip()[:70] for line in written.splitlines() if len(line) > 90)
    assert [begin for begin, times in begun.items() if times > 1] == []


def test_every_page_is_in_the_index() -> None:
    """docs/README.md names each page beside it."""
    listed = {path for path, _ in links(ROOT / "docs" / "README.md")}
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md" and page not in listed] == []


def test_pictures_are_those_that_are_taken_and_shown() -> None:
    """`make screens` makes exactly the pictures that are there, and a document shows each."""
    folder = ROOT / "docs" / "screens"
    there = {picture.name for picture in folder.iterdir()}
    shown = {path.name for document in DOCUMENTS for path, _ in links(document) if path.parent == folder}
    assert there == {name for screen in SCREENS for name in screen.pictures}
    assert there == shown
