from pathlib import Path

import msgspec

from benchmarks import figures


def test_a_ratio_to_nothing_is_not_known() -> None:
    """Nothing is divided by zero, and no figure is made up."""
    assert figures.ratio(1, 2) == 0.5
    assert figures.ratio(1, 0) is None


def test_times_are_told_in_milliseconds() -> None:
    """Percentiles are measured values; without values all are 0."""
    assert figures.quantiles_ms([3000, 1000, 2000]) == {
        "count": 3, "p50_ms": 2.0, "p90_ms": 3.0, "p99_ms": 3.0, "max_ms": 3.0
    }  # fmt: skip
    assert figures.quantiles_ms([])["max_ms"] == 0


def test_a_table_is_aligned() -> None:
    """Names to the left, figures to the right, and no blanks at the end of a line."""
    assert (
        figures.table(("team", "got"), [("a", "1.0"), ("longer", "12.0")]) == "team     got\na        1.0\nlonger  12.0"
    )
    assert figures.table(("a", "b"), []) == "a  b"


def test_figures_are_written_where_no_folder_was(tmp_path: Path) -> None:
    """The file holds what was reported, as JSON."""
    figures.write(tmp_path / "build" / "a.json", {"ratio": 0.5, "machine": None})
    assert msgspec.json.decode((tmp_path / "build" / "a.json").read_bytes()) == {"ratio": 0.5, "machine": None}


def test_what_is_not_known_has_its_sign() -> None:
    """A table shows a dash for it, and never a zero."""
    assert (figures.number(None), figures.share(None)) == ("-", "-")
    assert (figures.number(1234.5, 0), figures.share(0.5)) == ("1,234", "50.0 %")


def test_the_machine_is_told() -> None:
    """Cores and versions stand beside every figure."""
    told = figures.machine()
    assert told["cores"] >= 1
    assert told["versions"]["msgspec"] is not None
    assert figures.version("no-such-package-at-all") is None
