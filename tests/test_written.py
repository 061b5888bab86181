"""Figures for people are written in one way: in the code, in what commands print, on pages and in mails."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.written import other_ways, other_ways_of_html

_FOLDERS = ("accounts", "api", "cost", "dashboards", "gateway", "planner", "providers", "proxy", "selfhosted")
_OWN_SHARES = re.compile(r"\{[^{}]*:[^{}]*\d%\}|\\u2212|\u2212")
"""A share that a sentence formats by itself, and a minus of typesetters."""


def test_no_module_formats_shares_by_itself() -> None:
    """`cost.shown.percent` does, so that nothing and all are told apart from nearly so, and the blank is everywhere."""
    files = subprocess.run(["git", "ls-files", *_FOLDERS], capture_output=True, text=True, check=True).stdout.split()
    found = [
        f"{name}: {line.strip()}"
        for name in files
        if name.endswith((".py", ".html", ".js")) and "/static/vendor" not in name
        for line in Path(name).read_text("utf-8").splitlines()
        # Who reads what a model wrote reads every minus.
        if _OWN_SHARES.search(line) and name != "api/ask/answer.py"
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("saved 12.5 % of $-5.00", 1),
        ("saved 12.5% (-$5.00)", 1),
        ("\u2212$5 and \u22125 %", 2),
        ("a%20b%2Fc, or a share such as 0.5%", 0),
    ],
)
def test_the_other_way_is_found(text: str, found: int) -> None:
    """In text and in a page, whose styles and addresses are none."""
    assert len(other_ways(text)) == found
    page = f"<style>a {{ width: 40% }}</style><a href='x%5'>{text}</a><code>9%</code>"
    assert len(other_ways_of_html(page)) == found
