"""Somebody who follows every link of ours that they are shown."""

import re
from collections import Counter, deque
from html import unescape
from typing import Final
from urllib.parse import urldefrag, urljoin, urlsplit

from tests.signed_in import Answer, Browser
from tests.written import other_ways_of_html

_LINKS: Final = re.compile(r'(?:href|hx-get|src)="([^"]+)"')
_NAMED: Final = re.compile(r"/(teams|keys|people|requests|audit|prices|targets|pools|budgets|measurements)/[^/?]+")
EACH: Final = 3
"""How many addresses that differ in a name or a figure only are tried, where nothing else is said."""


class Walk:
    """What was found on the way: each address with its answer, and where the link to it stood."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.shown_on: dict[str, str] = {}

    @property
    def dead_ends(self) -> list[str]:
        """Links that led to no page."""
        return [
            f"{answer.status} {path} (on {self.shown_on[path]})"
            for path, answer in self.answers.items()
            if answer.status not in {200, 303}
        ]

    def written_otherwise(self) -> list[str]:
        """Figures on pages that are written in another way than all others."""
        return [
            f"{path}: {each}"
            for path, answer in self.answers.items()
            if answer.headers.get("content-type", "").startswith("text/html")
            for each in other_ways_of_html(answer.text)
        ]

    def text(self) -> str:
        """Everything that was read."""
        return "\n".join(answer.text for answer in self.answers.values())


async def walk(browser: Browser, start: str = "/dashboard", *, most: int = 400, each: int = EACH) -> Walk:
    """From one page on, wherever links, files, refreshed parts and redirects lead."""
    found, ahead, tried = Walk(), deque([(start, "the start")]), Counter[str]()
    while ahead and len(found.answers) < most:
        path, shown_on = ahead.popleft()
        path = urldefrag(path).url
        tried[_shape(path)] += 1
        if path in found.answers or tried[_shape(path)] > each or "/decisions/stream" in path:
            continue
        answer = await browser.get(path)
        found.answers[path], found.shown_on[path] = answer, shown_on
        if answer.location:
            ahead.append((urljoin(path, answer.location), path))
        ahead.extend((link, path) for link in _links(path, answer) if link not in found.answers)
    return found


def _links(path: str, answer: Answer) -> list[str]:
    if not answer.headers.get("content-type", "").startswith("text/html"):
        return []
    links = [unescape(link) for link in _LINKS.findall(answer.text)]
    return [urljoin(path, link) for link in links if not urlsplit(link).scheme and not link.startswith(("//", "#"))]


def _shape(path: str) -> str:
    parts = urlsplit(path)
    names = sorted({pair.partition("=")[0] for pair in parts.query.split("&")})
    path = _NAMED.sub(r"/\1/…", parts.path)
    return f"{path}?{','.join(names)}"
