"""The report of a small evaluation: every table and picture is there, in one page that needs nothing else."""

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from classifier.training.data import load
from classifier.training.evaluate import Evaluation, Row, Scored, evaluated
from classifier.training.evaluation_report import aligned, main_table, told, verdict, write_report
from classifier.training.plots import plots, short
from tests.classifier.outcomes import rows, write
from tests.classifier.test_evaluate import knowing, scored, timing
from tests.once import folder_once, made_once


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return made_once(tmp_path_factory, "evaluation", lambda: _found(tmp_path_factory))


def _found(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    corpus = load(write(tmp_path_factory.mktemp("data"), *rows(720)))
    said = scored(corpus)
    splits = ("shipped", "10-fold", "own-0", "own-50")
    found = evaluated(corpus, {split: lambda: said for split in splits}, timing(corpus), notes=["<b>a note</b>"])
    # Two pairs and two targets are enough to look at, and quicker to draw.
    pairs = {found.rows[0].pair, found.rows[1].pair}
    judged = [each for each in found.judged if each.row.pair in pairs]
    return msgspec.structs.replace(found, judged=judged, targets=found.targets[:4], many=found.many[:2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, found: Evaluation) -> Path:
    return folder_once(tmp_path_factory, "report", lambda folder: write_report(folder, found))


@pytest.mark.long
def test_the_page_needs_nothing_else(folder: Path) -> None:
    """All pictures are inside the page; it names no script and no address but the paper's."""
    page = (folder / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 6
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)


def test_each_picture_is_a_file_too(folder: Path) -> None:
    """Curves, targets, promises, reliability, learning and latency each have their file."""
    names = {"pairs", "targets", "promises", "reliability", "learning", "latency"}
    assert {path.stem for path in folder.glob("*.svg")} == names
    assert all(b"<svg" in path.read_bytes()[:1000] for path in folder.glob("*.svg"))


def test_names_in_the_page_are_text(folder: Path) -> None:
    """What came from data is escaped."""
    page = (folder / "report.html").read_text()
    assert "&lt;b&gt;a note&lt;/b&gt;" in page
    assert "<b>a note" not in page


@pytest.mark.long
def test_the_same_numbers_give_the_same_bytes(folder: Path, tmp_path: Path, found: Evaluation) -> None:
    """Writing a report again changes nothing."""
    write_report(tmp_path, found)
    for path in sorted(folder.iterdir()):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_the_numbers_are_there_for_programs(folder: Path, found: Evaluation) -> None:
    """report.json holds every row of the table with what is saved, the calibration and the promises."""
    numbers = json.loads((folder / "report.json").read_text())
    assert len(numbers["rows"]) == len(found.judged)
    assert any(row["saved_at"] for row in numbers["rows"])
    assert numbers["targets"][0]["found"]["bins"]
    assert len(numbers["promises"][0]["rows"]) == 11


def test_axes_are_labelled(found: Evaluation) -> None:
    """Every axis of every picture says what it shows."""
    for plot in plots(found):
        assert plot.told
        for ax in plot.figure.axes:
            assert ax.get_ylabel() or ax.get_yticklabels()
            assert ax.get_xlabel() or plot.name == "promises"


def test_one_aligned_table(found: Evaluation) -> None:
    """The table has a line for each pair and split, columns start at one place, and baselines stand beside."""
    head, *_ = lines = aligned(main_table(found)).splitlines()
    assert len(lines) == 2 + len(found.rows)
    at = head.index("split")
    assert all(line[at - 2 : at] == "  " and line[at] != " " for line in lines[2:])
    screen = told(found)
    assert ".522" in screen
    assert "RouteLLM, best row, MMLU" in screen
    assert "note: <b>a note</b>" in screen


@pytest.mark.parametrize(
    ("low", "value", "high", "said"),
    [
        (0.6, 0.7, 0.8, "clearly above"),
        (0.4, 0.6, 0.8, "above"),
        (0.3, 0.4, 0.6, "below"),
        (0.1, 0.2, 0.3, "clearly below"),
    ],
)
def test_clearly_means_beyond_the_interval(low: float, value: float, high: float, said: str) -> None:
    """A number is clearly above another only when its whole interval is."""
    assert verdict(Row("p", "s", 100, value, low, high, 0, 0, 0, 0), 0.5) == said
    assert verdict(Row("p", "s", 100, value, low, high, 0, 0, 0, 0), None) == "-"


def test_a_report_of_little_is_a_report(tmp_path: Path) -> None:
    """Without cross-validation or several targets the rest is told."""
    corpus = load(write(tmp_path / "data", *rows(360)))
    first = {name: said for name, said in knowing(corpus, 0.2).items() if "gpt-4o" not in name}
    little = evaluated(corpus, {"shipped": lambda: Scored(adequate=first)}, timing(corpus))
    assert write_report(tmp_path / "report", little).is_file()
    assert not (tmp_path / "report" / "targets.svg").exists()


def test_without_matplotlib_the_numbers_are_told(
    tmp_path: Path, found: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pictures cannot be drawn, the page has every table and says why it has no picture."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = write_report(tmp_path, found).read_text()
    assert "matplotlib is not installed" in page
    assert "<img" not in page
    assert found.rows[0].pair in page


def test_short_names_stay_apart() -> None:
    """A name on a picture loses its date and no more."""
    assert short("gpt-4o-2024-05-13") == "gpt-4o"
    assert short("claude-3-5-sonnet-20240620") == "claude-3-5-sonnet"
    assert short("llama-3.1-70b-instruct") == "llama-3.1-70b"
