"""What docs/threats.md promises is shown by tests that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [line for line in (ROOT / "docs" / "threats.md").read_text().splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("row", ROWS)
def test_each_threat_names_tests_that_exist(row: str) -> None:
    *_, shown, end = row.split("|")
    assert not end
    named = re.findall(r"`([^`]+)`", shown)
    assert named
    for each in named:
        assert re.search(r"^(async )?def test_", (ROOT / each).read_text(), re.MULTILINE), each
