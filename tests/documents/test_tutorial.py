"""The tutorial, as its reader follows it: real processes, and everything that it shows is what comes."""

import html
import re
import socket
from pathlib import Path

import aiohttp
import pytest

from tests.documents.page import blocks, fits, shell
from tests.processes import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
_PASSWORD = "several words make a good one"


def free_ports() -> list[str]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return [str(each.getsockname()[1]) for each in (one, two)]


def left(folder: Path) -> list[str]:
    """What the reader sees in the folder."""
    return [each.name for each in folder.iterdir() if not each.name.startswith(".")]


async def opened(link: str) -> str:
    """The team's page in words, for who was invited by the link. A browser takes the session's cookie from this machine without https."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        given = {"password": _PASSWORD, "again": _PASSWORD}
        own = {"sec-fetch-site": "same-origin"}
        async with session.post(link, data=given, headers=own, allow_redirects=False) as done:
            assert done.status == 303, await done.text()
            cookies = "; ".join(f"{name}={each.value}" for name, each in done.cookies.items())
        place = link.partition("/welcome/")[0] + "/teams/team_payments"
        async with session.get(place, headers={"cookie": cookies}) as page:
            text = await page.text()
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


@pytest.mark.timeout(600)
async def test_the_tutorial(tmp_path: Path) -> None:
    """Each block succeeds and prints just what stands below it, and the page that it opens has its figures."""
    gateway, provider = free_ports()
    printed, compared = "", 0
    async with shell(tmp_path) as reader:
        for block in blocks(PAGE, {"8080": gateway, "9000": provider}):
            match block.language:
                case "sh":
                    assert not printed, "what a block prints is shown below it"
                    printed = await reader.run(block.text)
                case "text":
                    assert fits(printed, block.text), f"printed:\n{printed}\nshown:\n{block.text}"
                    link, printed, compared = printed.strip(), "", compared + 1
                case "page":
                    seen = await opened(link)
                    for line in block.text.splitlines():
                        assert line in seen, seen[:2_000]
                    compared += 1
                case other:
                    pytest.fail(f"{other} is not compared")
    assert not printed
    assert compared == 9
    assert not left(tmp_path)


@pytest.mark.parametrize(
    ("printed", "shown", "same"),
    [
        ("key_1 for a", "key_… for a", True),
        ("key_1 for b", "key_… for a", False),
        ("one\ntwo", "o…wo", False),
        ("402 (used)", "402 (used)", True),
        ("4x2", "4.2", False),
    ],
)
def test_what_is_shown_is_compared(printed: str, shown: str, same: bool) -> None:
    assert fits(printed, shown) is same
