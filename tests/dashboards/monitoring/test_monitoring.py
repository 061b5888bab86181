"""Dashboards and alerts are held against the metrics that a running gateway exports."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dashboards.monitoring.boards import BOARDS, FOLDER, written
from tests.running_gateway import model, running_gateway

RULES = FOLDER.parent / "prometheus" / "weighbridge.rules.yml"
_NAME = re.compile(r"\bweighbridge[a-z0-9_:]*")
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",), "info": ("",)}
_WORDS = {"le", "by", "without", "on", "ignoring"}


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of the files, with the place where it stands."""
    for file in sorted(FOLDER.glob("*.json")):
        board = json.loads(file.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{file.name}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{file.name}: {variable['name']}", variable["definition"]
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield f"{RULES.name}: {rule.get('alert') or rule['record']}", rule["expr"]


def recorded() -> set[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


async def exported(folder: Path) -> set[str]:
    async with (
        running_gateway(folder, [model("m", [{"kind": "scripted", "upstream_model": "x"}])]) as running,
        aiohttp.ClientSession() as session,
        session.get(f"{running.url}/metrics") as reply,
    ):
        assert reply.status == 200
        page = await reply.text()
    names = set()
    for family in text_string_to_metric_families(page):
        names |= {family.name + suffix for suffix in _SUFFIXES[family.type]}
    return names


async def test_every_name_is_exported(tmp_path: Path) -> None:
    """No panel and no alert asks for a metric that a gateway does not have."""
    known = await exported(tmp_path) | recorded()
    unknown = {(place, name) for place, text in expressions() for name in _NAME.findall(text) if name not in known}
    assert not unknown
    assert len(list(expressions())) > 60


def test_every_metric_is_shown_somewhere() -> None:
    """What is measured is on a board or in an alert, but for what is told elsewhere."""
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for _, text in expressions() for name in _NAME.findall(text)}
    left_out = {
        "weighbridge_build_info",
        "weighbridge_limits_local_total",
        "weighbridge_prompt_beginnings_total",
        "weighbridge_queue_waiting_tokens",
        "weighbridge_replicas",
        "weighbridge_shadow_total",
    }
    assert documented().keys() - shown == left_out


def documented() -> dict[str, set[str]]:
    """Each metric's labels. tests/proxy/observers holds the page against the code."""
    page = (FOLDER.parents[2] / "docs" / "observability.md").read_text()
    rows = re.findall(r"^- `(weighbridge_\w+)`(?: \(h\))?(?: \{([^}]*)\})?", page, re.MULTILINE)
    return {name: {label.strip() for label in labels.split(",") if label.strip()} for name, labels in rows}


def test_every_label_is_one() -> None:
    """Selectors and groupings name labels that the metric has: a misspelt one would show nothing."""
    labels = documented()
    for place, text in expressions():
        for name, selector in re.findall(r"(weighbridge_\w+)\{([^}]*)\}", text):
            base = re.sub(r"_(bucket|count|sum)$", "", name)
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert used <= labels[base] | {"le"}, place
        if "vllm:" in text:
            # Engines' own metrics have labels of their own.
            continue
        for grouping in re.findall(r"\bby \(([^)]*)\)", text):
            used = {label.strip() for label in grouping.split(",")} - _WORDS
            names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in _NAME.findall(text) if ":" not in name}
            assert all(any(label in labels[name] for name in names) for label in used), place


def test_files_are_as_they_are_made() -> None:
    """Who changes a board changes its description, and makes the files anew."""
    assert {file.name for file in FOLDER.glob("*.json")} == {f"{board.uid}.json" for board in BOARDS}
    for board in BOARDS:
        assert (FOLDER / f"{board.uid}.json").read_text() == written(board) + "\n", (
            "python -m dashboards.monitoring.boards"
        )


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.json")), ids=lambda file: file.stem)
def test_boards_can_be_imported_anywhere(file: Path) -> None:
    """No panel lies on another, each has words of its own, and none names a data source of some installation."""
    board: dict[str, Any] = json.loads(file.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def _promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool")
    if found is None:
        assert not os.environ.get("CI"), "promtool is missing: .ci/packages installs it"
        pytest.skip("promtool is not there; Debian's package is called prometheus")
    return subprocess.run([found, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_prometheus_takes_the_rules() -> None:
    """Prometheus's own checker finds nothing wrong with them."""
    done = _promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should() -> None:
    """And do not, where nothing is wrong: Prometheus's own unit tests."""
    done = _promtool("test", "rules", str(Path(__file__).parent / "rules_test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_are_sound_promql(tmp_path: Path) -> None:
    """Each panel's expression, with Grafana's words filled in, is one that Prometheus parses."""
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "5m").replace('"$', '"')}
        for number, (_, text) in enumerate(expressions())
        if not text.startswith("label_values")
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = _promtool("check", "rules", "--lint=none", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
