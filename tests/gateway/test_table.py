"""Tables: plain text for programs, never wider than a terminal, and figures are never what is cut."""

import os
import pty
import subprocess
import sys
import termios

import pytest

from gateway.table import print_table

_SCRIPT = """
from gateway.table import print_table
print_table(["prompt", "why", "cost"], [["word " * 20, "cheapest-capable", "0.001125"]], right=(2,), shrink=0)
"""


def _on_a_terminal(columns: int) -> str:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    environ = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    subprocess.run([sys.executable, "-c", _SCRIPT], stdout=theirs, env={**environ, "TERM": "xterm"}, check=True)
    os.close(theirs)
    with os.fdopen(ours, "rb") as terminal:
        return terminal.read1(65_536).decode()


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_on_a_narrow_terminal_only_the_text_is_cut(columns: int) -> None:
    """The column that may shrink does; the figures stay whole, and no line is wider than the terminal."""
    row = _on_a_terminal(columns).splitlines()[2]
    assert "…" in row
    assert row.rstrip().endswith("cheapest-capable  0.001125")
    assert len(row.rstrip()) <= columns


def test_elsewhere_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal every cell is whole, on its line, without colour, and markup is only text."""
    print_table(["a", "b"], [["[bold]x[/bold] " * 30, "1"], ["y", "22"]], right=(1,))
    heading, first, second = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert first.startswith("[bold]x[/bold] [bold]x")
    assert len(heading) == len(first) == len(second)
    assert second.endswith(" 22")
    assert "\x1b" not in heading + first


def test_a_table_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    """No rows print the headings alone."""
    print_table(["a", "b"], [])
    assert capsys.readouterr().out.split() == ["a", "b"]
