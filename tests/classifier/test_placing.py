"""Where a prompt stands by the graph's scores."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.manifest import Artifact, ArtifactMalformed, Manifest, Trust
from classifier.placing import TIERS, NotFinite, place_by, trust_in
from tests.examples import examples


def width(manifest: Manifest) -> int:
    return 2 + manifest.loads + len(manifest.kinds) + TIERS


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.booleans())
def test_any_row_has_its_place(made_up_artifact: Artifact, data: st.DataObject, tools: bool) -> None:
    """Complexity and trust are probabilities, and loads lie between the network's own and those of the complexity; a row that is not
    finite is refused.
    """
    manifest = made_up_artifact.manifest
    numbers = st.floats(-50, 50, width=32) | st.sampled_from([np.nan, np.inf, -np.inf])
    row = np.array(data.draw(st.lists(numbers, min_size=width(manifest), max_size=width(manifest))), np.float32)
    place = place_by(row, manifest)
    if not np.isfinite(row).all():
        with pytest.raises(NotFinite):
            place(tools)
        return
    placed = place(tools)
    chances = [1 / (1 + math.exp(-logit)) for logit in row[-TIERS:].tolist()]
    assert placed.complexity == pytest.approx(sum(chances) / TIERS, abs=1e-12)
    assert placed.trust == trust_in(manifest.trust, float(row[0]), placed.complexity, tools=tools)
    whole = np.linspace(0, 1, len(manifest.blend))
    others = [np.interp(placed.complexity, whole, column) for column in np.transpose(manifest.blend)]
    mixed = placed.trust * row[1 : 2 + manifest.loads] + (1 - placed.trust) * np.array(others)
    assert [*placed.loads, placed.log_tokens] == pytest.approx(mixed, abs=1e-9)
    assert row[2 + manifest.loads + placed.kind] == row[2 + manifest.loads : -TIERS].max()


def test_where_a_prompt_stood_stays(made_up_artifact: Artifact) -> None:
    """What was found of a prompt is not that of the next one."""
    row = np.full(width(made_up_artifact.manifest), 0.5, np.float32)
    place = place_by(row, made_up_artifact.manifest)
    before = place(False)
    kept = before.loads.copy()
    row[:] = 1
    assert place(False).loads.tolist() != kept.tolist()
    assert before.loads.tolist() == kept.tolist()


@pytest.mark.parametrize("more", [-1, 1])
def test_a_row_of_another_length_is_refused(made_up_artifact: Artifact, more: int) -> None:
    """Its numbers would be taken for others."""
    with pytest.raises(ArtifactMalformed, match="other outputs"):
        place_by(np.zeros(width(made_up_artifact.manifest) + more, np.float32), made_up_artifact.manifest)


@pytest.mark.parametrize(
    ("complexity", "tools", "trust"),
    [
        (0.3, True, 1.0),  # No harder than one call.
        (0.55, True, 0.5),  # Half way to an agent's job.
        (0.9, True, 0.2),
        (0.3, False, 0.2),
    ],
)
def test_tools_are_trusted_for_one_call(complexity: float, tools: bool, trust: float) -> None:
    """With tools on offer the complexity allows trust; where it allows none, and without, the domain alone decides."""
    settings = Trust(tools_by_complexity=0.0, one_call=0.45, agents_job=0.65)
    assert trust_in(settings, math.log(0.2 / 0.8), complexity, tools=tools) == pytest.approx(trust)
