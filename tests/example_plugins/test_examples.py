"""The examples: short, sound by the kit, and doing what they say."""

import hashlib
import hmac
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from weighbridge.plugins import Call, Candidate, Kind
from weighbridge.plugins.testing import sample_candidates, sample_outcomes, sample_request, sample_texts, try_out

FOLDER: Final = Path(__file__).parents[2] / "examples" / "plugins"
_MOST_LINES: Final = 60


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.syspath_prepend(FOLDER / "residency")


def made(use: str, *settings: Any, **named: Any) -> Any:
    module_name, _, name = use.partition(":")
    made_by = getattr(importlib.import_module(module_name), name)
    return made_by(made_by.Settings(*settings, **named)) if hasattr(made_by, "Settings") else made_by()


def test_there_are_five_short_ones() -> None:
    """One of each kind, of at most sixty lines."""
    files = sorted(FOLDER.rglob("*.py"))
    assert len(files) == 5
    assert max(len(each.read_text().splitlines()) for each in files) <= _MOST_LINES


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("guard", lambda _: made("customer_numbers:CustomerNumbers", ["aurora"])),
        ("scorer", lambda _: made("residency:Residency", {"sample-team": ["own"]}, {"bought": 5})),
        ("exporter", lambda folder: made("lines_file:LinesFile", str(folder / "lines.jsonl"))),
        ("authenticator", lambda _: made("signed_header:SignedHeader", "shared")),
        ("dialect", lambda _: made("tgi_generate:TgiGenerate")),
    ],
)
async def test_the_kit_finds_nothing(kind: Kind, make: Callable[[Path], Any], tmp_path: Path) -> None:
    """What authors copy is sound."""
    await try_out(make(tmp_path), kind)


async def test_the_guard_masks_and_blocks() -> None:
    """Numbers by their places; a project by its name, in any case."""
    guard = made("customer_numbers:CustomerNumbers", ["aurora"])
    found = await guard.check(sample_texts("nothing", "call K-123456 and K-654321, not XK-1234567"), sample_request())
    assert found.action == "mask"
    assert [(each.text, each.start, each.end) for each in found.spans] == [(1, 5, 13), (1, 18, 26)]
    assert (await guard.check(sample_texts("about Aurora"), sample_request())).action == "block"
    assert (await guard.check(sample_texts("about nothing"), sample_request())).action == "pass"


def test_the_scorer_keeps_a_team_in_its_region() -> None:
    """Others pay a surcharge in comparison alone."""
    scorer = made("residency:Residency", {"sample-team": ["own"]}, {"bought": 5})
    inside = scorer.score(sample_request(), sample_candidates())
    assert [each.target_id for each in inside if each.veto] == ["large", "unpriced"]
    elsewhere = scorer.score(sample_request(team_id="other"), (Candidate(target_id="large", provider="bought"),))
    assert [(each.veto, each.margin_nanousd) for each in elsewhere] == [("", 5)]


async def test_the_exporter_appends_what_is_no_sample(tmp_path: Path) -> None:
    """Two batches, whole lines."""
    file = tmp_path / "lines.jsonl"
    exporter = made("lines_file:LinesFile", str(file))
    await exporter.finished(sample_outcomes(2))
    assert not file.exists()


async def test_the_authenticator_takes_good_signatures_alone() -> None:
    """A forged one, one that is over, half of one, and one with another team."""
    known = made("signed_header:SignedHeader", "shared")

    def header(said: str, secret: bytes = b"shared") -> dict[str, str]:
        return {"x-portal-user": f"{said}/{hmac.new(secret, said.encode(), hashlib.sha256).hexdigest()}"}

    later = int(time.time()) + 60
    identity = await known.caller(header(f"team_a/portal/{later}"))
    assert (identity.team_id, identity.key_name) == ("team_a", "portal")
    good = header(f"team_a/portal/{later}")["x-portal-user"]
    for bad in (
        header(f"team_a/portal/{later}", b"other")["x-portal-user"],
        header("team_a/portal/1")["x-portal-user"],
        good.replace("team_a", "team_b"),
        good[:-1],
        "team_a/portal",
        "é/é/é/é",
    ):
        assert await known.caller({"x-portal-user": bad}) is None


def test_the_dialect_reads_the_end_and_the_usage() -> None:
    """Of a stream's last event."""
    reader = made("tgi_generate:TgiGenerate").reader(Call(request_id="r", model="m", stream=True))
    first = reader.event(b'{"token": {"text": "Hi", "special": false}}')
    last = reader.event(
        b'{"token": {"text": "</s>", "special": true}, "details": {"finish_reason": "length", "generated_tokens": 2, "input_length": 3}}'
    )
    assert (first["choices"][0]["delta"]["content"], first["choices"][0]["finish_reason"]) == ("Hi", None)
    assert (last["choices"][0]["delta"]["content"], last["choices"][0]["finish_reason"]) == ("", "length")
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
