"""The three sizes: the page says what is computed, and their configurations are ones that a gateway takes."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from benchmarks import references
from tests.nursery import nursery

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "references"
PAGE: Final = (ROOT / "docs" / "references.md").read_text()
BENCHMARKS: Final = (ROOT / "docs" / "benchmarks.md").read_text()
_SECRETS: Final = {
    "PATH": "/usr/bin:/bin",
    "WEIGHBRIDGE_PEPPER": "a pepper for tests only, 32 bytes and more",
    "REDIS_ADDRESS": "redis://127.0.0.1:1/0",
    "OPENAI_API_KEY": "made up",
}


def _file(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def test_the_page_has_the_computed_figures() -> None:
    assert references.table() in PAGE
    assert references.goal() in PAGE
    assert f"{references.LEDGER_ROWS:,} ledger rows/s" in PAGE
    assert f"{references.USERS_QPS} requests/s" in PAGE
    assert f"${references.GPUS_USD_YEAR:,.0f} a year" in PAGE


def test_what_is_computed_with_was_measured() -> None:
    """By the page of benchmarks, and by that of planning."""
    assert f"| {references.WORKER_QPS:,} (0.84) |" in BENCHMARKS
    assert f"memory a stream, KiB | 31; 42 | 28; {references.STREAM_KIB} |" in BENCHMARKS
    assert (
        "10,000 callers on 2 workers: errors; open at once | `make bench-callers` | 0; 10,000 | 0; 10,000" in BENCHMARKS
    )
    planning = (ROOT / "docs" / "planning.md").read_text()
    assert f"make {references.USERS_QPS} requests/s" in planning
    assert f"${references.GPUS_USD_YEAR:,.2f}  cheapest" in planning
    limit = re.search(r"its limit: ([\d,]+) requests and ([\d,]+) tokens a minute", planning)
    assert limit is not None
    told = [int(each.replace(",", "")) for each in limit.groups()]
    team = _file("two-hosts")["limits"]["team"]
    assert [team["requests_per_minute"], team["tokens_per_minute"]] == told
    part = _file("two-regions")["limits"]["team"]
    assert [part["requests_per_minute"], part["tokens_per_minute"]] == [each // 2 for each in told]


@pytest.mark.parametrize(("name", "size"), [("one-box", 0), ("two-hosts", 1), ("two-regions", 2)])
def test_each_configuration_is_one(tmp_path: Path, name: str, size: int) -> None:
    """As `config check` sees it, with as many workers as are counted with."""
    environ = {**_SECRETS, "WEIGHBRIDGE_DATA_DIR": str(tmp_path)}
    done = nursery().run(["config", "check", str(FOLDER / f"{name}.yaml")], environ=environ, cwd=ROOT, timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert _file(name)["server"]["workers"] == references.REFERENCES[size].workers
    assert f"../deploy/references/{name}.yaml" in PAGE


def test_what_is_carried_is_the_least_of_its_parts() -> None:
    assert [each.qps for each in references.REFERENCES] == [each.books_qps for each in references.REFERENCES]
    assert all(each.qps > references.USERS_QPS for each in references.REFERENCES)
    in_flight = references.USERS_QPS * references.ANSWER_S
    assert all(each.streams > in_flight for each in references.REFERENCES)
