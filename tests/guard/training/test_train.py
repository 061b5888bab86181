"""The training: its sources, what it makes of texts, and that it comes out the same twice."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from guard.injection import ARTIFACTS, BUCKET_BITS, MANIFEST_FILE, Injection
from guard.training.sources import Source, SourceError, digest, own, sources, texts
from guard.training.train import Family, apart, cut_at, fit, read, scores_of, table

ROOT = Path(__file__).parents[3]


def test_every_source_has_a_licence_a_recipe_and_a_digest() -> None:
    """What was trained on is what the manifest says; what has no licence was measured alone."""
    manifest = json.loads((ARTIFACTS / MANIFEST_FILE).read_text())
    rows = sources()
    assert {row.name: row.sha256 for row in rows} == manifest["sources"]
    assert all(row.licence and row.obtain and re.fullmatch("[0-9a-f]{64}", row.sha256) for row in rows)
    assert {row.use for row in rows if "none" in row.licence} == {"measure"}
    assert all(row.attacks or row.benign for row in rows)


def test_the_document_has_the_rates_that_were_measured() -> None:
    """docs/injection.md shows the manifest's table."""
    page = (ROOT / "docs" / "injection.md").read_text()
    assert "\n".join(table(Injection.load().manifest)) in page


def test_a_source_that_is_not_there_says_how_to_obtain_it(tmp_path: Path) -> None:
    """The command is of no use to who has no data, and says so."""
    with pytest.raises(SourceError, match="obtain: "):
        digest(sources()[0], tmp_path)


@pytest.mark.parametrize(
    ("reader", "field", "content", "found"),
    [
        ("json", "", '["the first text", ["the second text"], {"a": "the third text"}]', 3),
        ("json", "prompt", '[{"prompt": "the first text", "other": "not this text"}]', 1),
        ("jsonl", "attack", '{"attack": "the first text"}\n{"attack": "the second text"}\n', 2),
        ("yaml", "value", "value: do {{ prompt }} and the rest of it\n", 1),
        ("safe_rows", "prompt", "id,prompt,label\n1,the first text,safe\n2,the second text,unsafe\n", 1),
        ("pieces", "", "x" * 5_000, 2),
    ],
)
def test_readers_read_their_form(tmp_path: Path, reader: str, field: str, content: str, found: int) -> None:
    """Each of the forms in which the sources come; the same text counts once."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.data").write_text(content)
    said = {
        "name": "n",
        "folder": "set",
        "files": ["*.data"],
        "use": "train",
        "licence": "MIT",
        "obtain": "",
        "sha256": "",
    }
    row = msgspec.convert({**said, "reader": reader, "field": field, "benign": "b"}, Source)
    read_texts = texts(row, tmp_path)
    assert len(read_texts) == found
    assert all(not text.attack and text.family == "b" for text in read_texts)


def test_our_own_texts_have_no_slot_left() -> None:
    """Each pattern is filled, differently in each turn."""
    ours = own()
    assert not [text.text for text in ours if re.search(r"\{[a-z]+\}", text.text)]
    assert sum(text.attack for text in ours) > 500
    assert sum(not text.attack for text in ours) > 100


def test_the_same_texts_make_the_same_weights_that_tell_them_apart() -> None:
    """Fitted on half of our own texts, measured on the other half."""
    items = [read(text) for text in own()]
    half, other = items[::2], items[1::2]
    weights, bias = fit(half)
    again, _ = fit(half)
    assert weights.shape == (2**BUCKET_BITS,)
    assert np.array_equal(weights, again)
    scores = scores_of(other, weights, bias)
    attacks = np.array([item.told.attack for item in other])
    assert (scores[attacks] > 0).mean() > 0.9
    assert (scores[~attacks] > 0).mean() < 0.4


def test_a_family_is_left_out_with_what_resembles_it() -> None:
    """Else its copies in other sets would be what is measured."""
    items = [read(text) for text in own()]
    copied = items[0].told
    items.append(read(type(copied)(copied.text, "another family", attack=True, train=True)))
    rest = apart(items, "another family")
    assert all(item.told.text != copied.text for item in rest)
    assert len(rest) >= len(items) - 60


def test_a_threshold_keeps_its_rate_on_ordinary_texts_alone() -> None:
    """At most the share, and not of families that were made to sound like attempts."""
    ordinary = Family("o", attack=False, trained=True, ordinary=True, scores=np.linspace(0, 1, 1_000))
    hard = Family("h", attack=False, trained=True, ordinary=False, scores=np.full(1_000, 9.0))
    for rate in (0.01, 0.003, 0.001):
        cut = cut_at([ordinary, hard], rate)
        assert (ordinary.scores >= cut).mean() <= rate
        assert (ordinary.scores >= cut).sum() >= 1_000 * rate - 1
