"""Rows from published scores, on made-up boards, and the order of those that ship."""

from collections.abc import Collection
from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier.known_models import known_models
from classifier.manifest import Manifest
from classifier.training import published as module
from classifier.training.published import Board, Line, Placing, grounds_of, line_of, standings
from classifier.tuning import Ability

SHIPPED = Path(module.__file__).parent.parent / "artifacts" / "manifest.json"
LOADS = 3


def logit(share: float) -> float:
    return float(np.log(share / (1 - share)))


def a_board(strengths: dict[str, float], columns: dict[str, float], hidden: Collection[tuple[str, str]] = ()) -> Board:
    """Scores that add up: a line's strength less a column's difficulty."""
    lines = [Line(*each.split("@")) if "@" in each else Line(each, "") for each in strengths]
    values = np.array([[strength - difficulty for difficulty in columns.values()] for strength in strengths.values()])
    for line, column in hidden:
        values[list(strengths).index(line), list(columns).index(column)] = np.nan
    return Board(lines, list(columns), values)


def test_a_hard_benchmark_that_only_the_best_were_put_to_does_not_make_them_weak() -> None:
    """Columns have levels of their own: a low score in a hard one says more than a high one in an easy one."""
    strengths = {f"old-{number}": number / 5 for number in range(10)} | {
        f"new-{number}": 3 + number / 5 for number in range(10)
    }
    columns = {"easy": -1.0, "common": 0.0, "hard": 4.0, "source mmlu_pro": 0.5}
    hidden = {(name, "hard") for name in strengths if name.startswith("old")}
    hidden |= {(name, column) for name in strengths if name.startswith("new") for column in ("easy", "source mmlu_pro")}
    found = standings(a_board(strengths, columns, hidden))
    told = [found.told(at, 3)[0] for at in range(len(strengths))]
    assert min(told[10:]) > max(told[:10])
    assert np.corrcoef(told, list(strengths.values()))[0, 1] > 0.98


def test_an_effort_without_scores_stands_between_its_siblings_and_less_surely() -> None:
    """What is known of a model at one effort is known of its others, less surely; and a higher effort is never below."""
    strengths = {f"model-{number}": number / 4 for number in range(12)}
    for number in range(6):
        strengths |= {f"thinker-{number}@none": number / 4, f"thinker-{number}@high": number / 4 + 1.0}
    strengths |= {"asked@none": 1.0, "asked@medium": 0.0, "asked@high": 2.0, "noisy@low": 1.4, "noisy@high": 1.2}
    columns = {"one": 0.0, "two": 0.5, "three": 1.0, "source mmlu_pro": 0.0}
    board = a_board(strengths, columns, {("asked@medium", column) for column in columns})
    found = standings(board)
    at = {line.key: number for number, line in enumerate(board.lines)}
    low, middle, high = (found.told(at[f"asked@{effort}"], 3) for effort in ("none", "medium", "high"))
    assert low[0] < middle[0] < high[0]
    assert middle[1] > max(low[1], high[1])
    assert found.told(at["noisy@low"], 3)[0] <= found.told(at["noisy@high"], 3)[0] + 1e-9


def test_a_placed_row_has_the_mean_that_its_standing_tells() -> None:
    """The row meets the told mean of a source, and a stronger model's row is above a weaker one's on every prompt."""
    rng = np.random.default_rng(0)
    loads = rng.normal(size=(300, LOADS))
    strengths = {f"model-{number}": number / 6 for number in range(24)}
    board = a_board(strengths, {"one": 0.0, "two": 0.5, "source mmlu_pro": 1.0}, {("model-20", "source mmlu_pro")})
    abilities = {
        name: Ability(weights=[1.0, -0.5, 0.0], bias=strength - 1.0)
        for name, strength in strengths.items()
        if name not in {"model-20", "model-2"}
    }
    placing = Placing(standings(board), grounds_of(loads, np.array(["mmlu_pro"] * 300), abilities))
    told, _ = placing.means("model-20")["mmlu_pro"]
    strong, weak = placing.placed("model-20"), placing.placed("model-2")
    assert strong.means["mmlu_pro"] == pytest.approx(1 / (1 + np.exp(-told)), abs=0.01)
    inputs = np.c_[np.ones(300), loads]
    assert (inputs @ strong.values > inputs @ weak.values).all()


def test_scores_are_gathered_under_the_names_that_serving_knows() -> None:
    """Whatever a publisher calls a model, its scores are those of the known one; a strange name stays itself."""
    assert line_of("claude-3-5-sonnet-20241022")[0] == "claude-3-5-sonnet"
    assert line_of("gpt-4o-2024-05-13-fc")[0] == "gpt-4o"
    assert line_of("wizardcoder-33b-v1.1") == ("wizardcoder-33b-v1.1", None)


@pytest.fixture(scope="module")
def shipped() -> Manifest:
    return msgspec.json.decode(SHIPPED.read_bytes(), type=Manifest)


SMALLER_AND_LARGER = [
    ("gpt-5-nano@medium", "gpt-5-mini@medium"),
    ("gpt-5-mini@medium", "gpt-5@medium"),
    ("gpt-5@minimal", "gpt-5@low"),
    ("gpt-5@low", "gpt-5@high"),
    ("gpt-4.1-nano", "gpt-4.1-mini"),
    ("gpt-4.1-mini", "gpt-4.1"),
    ("gpt-4.1", "gpt-5@medium"),
    ("claude-haiku-4-5@none", "claude-sonnet-4-5@none"),
    ("claude-sonnet-4-5@none", "claude-opus-4-5@none"),
    ("claude-3-5-haiku", "claude-haiku-4-5@none"),
    ("claude-sonnet-4-5@none", "claude-sonnet-4-5@high"),
    ("gemini-2.5-flash-lite@none", "gemini-2.5-flash@medium"),
    ("gemini-2.5-flash@medium", "gemini-3-pro@high"),
    ("llama-3.2-3b-instruct", "llama-3.3-70b-instruct"),
    ("qwen2.5-14b-instruct", "qwen3-235b-a22b@high"),
    ("grok-4-fast@none", "grok-4-fast@high"),
    ("nova-micro", "nova-pro"),
    ("o3@low", "o3@high"),
]


@pytest.mark.parametrize(("weaker", "stronger"), SMALLER_AND_LARGER)
def test_a_model_with_clearly_higher_scores_is_not_placed_below(shipped: Manifest, weaker: str, stronger: str) -> None:
    """On no source's prompts, on average, by more than what a row misses its mean by; nor for prompts of any complexity."""
    placed = shipped.training["placed"]
    for source, mean in placed[weaker].items():
        assert mean <= placed[stronger][source] + 0.02, source
    assert (chances_by_complexity(shipped, weaker) <= chances_by_complexity(shipped, stronger) + 0.01).all()


@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [
        ("gpt-4o-2024-05-13", "o3@medium"),
        ("gpt-4o-mini-2024-07-18", "gpt-5@medium"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-2024-05-13"),
        ("claude-3-haiku-20240307", "claude-haiku-4-5@none"),
        ("llama-3-8b-instruct", "llama-3.3-70b-instruct"),
        ("mixtral-8x7b-instruct-v0.1", "gpt-5-nano@medium"),
    ],
)
def test_rows_of_both_kinds_are_in_order(shipped: Manifest, weaker: str, stronger: str) -> None:
    """A hard prompt does not go to the weaker model because one of the two was measured and the other placed."""
    assert (chances_by_complexity(shipped, weaker)[1:] <= chances_by_complexity(shipped, stronger)[1:] + 0.01).all()


def chances_by_complexity(manifest: Manifest, row: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """P(adequate) of everyday prompts, from the easiest to proofs."""
    ability = manifest.abilities[row]
    loads = np.array(manifest.blend)[:, : manifest.loads]
    chances: np.ndarray[tuple[int], np.dtype[np.float64]] = 1 / (1 + np.exp(-(ability.bias + loads @ ability.weights)))
    return chances


def test_a_published_row_says_so(shipped: Manifest) -> None:
    """Each is less sure than a measured one, and one beyond all measured models less sure still."""
    by_basis: dict[str, list[Ability]] = {"outcomes": [], "published": []}
    for ability in shipped.abilities.values():
        by_basis[ability.basis].append(ability)
    assert {ability.reach for ability in by_basis["outcomes"]} == {0.0}
    assert min(ability.reach for ability in by_basis["published"]) >= module.LEAST_REACH
    assert {ability.extrapolated for ability in by_basis["published"]} == {True, False}
    beyond = [ability.reach for ability in by_basis["published"] if ability.extrapolated]
    assert min(beyond) >= module.EXTRAPOLATED * module.LEAST_REACH - 1e-9
    outcomes = {model.outcomes for model in known_models() if model.outcomes}
    assert outcomes <= shipped.abilities.keys()
