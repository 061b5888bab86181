"""The comparison: each line about others has a source and a day, and figures are those of the benchmarks' page."""

import re
from pathlib import Path
from typing import Final

import pytest

DOCS: Final = Path(__file__).parents[2] / "docs"
_PAGE: Final = (DOCS / "comparison.md").read_text()
_SOURCE: Final = re.compile(r"\[[^\]]+\]\((https://|[a-z-]+\.md)[^)]*\), 20\d\d-\d\d-\d\d")


def rows(heading: str) -> list[list[str]]:
    """The rows of the table under a heading, without its head."""
    section = _PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("heading", ["Where others are better", "What is different here"])
def test_each_line_has_a_source_and_a_day(heading: str) -> None:
    found = rows(heading)
    assert len(found) >= 5
    for row in found:
        assert _SOURCE.fullmatch(row[-1]), row


@pytest.mark.parametrize(
    "name",
    ["LiteLLM", "Portkey", "Bifrost", "OpenRouter", "Envoy AI Gateway", "llm-d", "vLLM router", "AIBrix"],
)
def test_everybody_is_better_at_something(name: str) -> None:
    assert [row for row in rows("Where others are better") if row[1].startswith(name)]


def test_figures_are_those_of_the_benchmarks() -> None:
    """To the letter, with their command and the day."""
    benchmarks = (DOCS / "benchmarks.md").read_text()
    peers = benchmarks.partition("## Peers\n")[2].partition("\n## ")[0]
    section = _PAGE.partition("## Figures\n")[2]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert len(lines) == 5
    for line in lines:
        assert line in peers.splitlines()
    assert "make bench-peers" in section
    assert "make bench-peers" in peers
    days = re.findall(r"20\d\d-\d\d-\d\d", section)
    assert days
    assert all(day in peers for day in days)


def test_no_address_is_a_registrys() -> None:
    """Packages and images are named, not linked to."""
    assert not re.search(r"https://[^)\s]*(pypi|npmjs|docker|ghcr|quay)\.", _PAGE)
