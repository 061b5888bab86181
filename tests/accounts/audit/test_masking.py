"""What an entry keeps of an object's state."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.audit.chain import canonical
from accounts.audit.masking import MAX_TEXT_CHARS, masked, one_line, plain
from accounts.secret_shapes import MASK, mask_text


class _Limits(msgspec.Struct):
    burst: int
    until: date


_SECRETS = [
    "secret",
    "client_secret",
    "password",
    "api_key",
    "apiKey",
    "metrics_token",
    "digest",
    "Authorization",
    "cookie",
]


@pytest.mark.parametrize("name", [*_SECRETS, "secret_value", "privateKey", "pepper", "plaintext", "credentials"])
def test_secrets_are_masked_by_name(name: str) -> None:
    """At any depth, also in a list; that there is none stays visible."""
    state = {"a": {name: "hunter2"}, "b": [{name: "hunter2"}], name: ["hunter2"]}
    assert "hunter2" not in canonical(masked(plain(state)))
    assert masked(plain({name: None})) == {name: None}
    assert masked(plain({name: ""})) == {name: ""}


@pytest.mark.parametrize(
    "name", ["key_id", "tokens_per_minute", "token_burst", "password_min_chars", "name", "key_name"]
)
def test_what_is_no_secret_stays(name: str) -> None:
    """Names that only sound alike are shown."""
    assert masked({name: "shown"}) == {name: "shown"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("wb-abcdefghijkl-" + "A" * 49, f"wb-abcdefghijkl-{MASK}"),
        ("use sk-proj-abcdefghijkl0123 now", f"use {MASK} now"),
        ("authorization: Bearer abcdefghijklmnop", f"authorization: Bearer {MASK}"),
        ("postgresql://user:hunter2@db/x", f"postgresql://user:{MASK}@db/x"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", MASK),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----", MASK),
        ("a sk-short word, a bearer of news", "a sk-short word, a bearer of news"),
        ("https://example.test:8080/a@b", "https://example.test:8080/a@b"),
    ],
)
def test_secrets_are_masked_by_shape(text: str, shown: str) -> None:
    """Wherever somebody wrote one by mistake; a key's public part stays."""
    assert mask_text(text) == shown


def test_a_changed_secret_is_seen_to_have_changed() -> None:
    """Both sides masked alone would look as if nothing had happened."""
    before = {"password": "one", "url": "http://a:one@h/", "same_token": "x"}
    after = {"password": "two", "url": "http://a:two@h/", "same_token": "x"}
    assert masked(after, before) == {
        "password": "••• (changed)",
        "url": f"http://a:{MASK}@h/ (changed)",
        "same_token": MASK,
    }


def test_values_are_kept_plain_and_exact() -> None:
    """Money, moments and sets have one way to be written; a Decimal is not rounded on the way."""
    noon = datetime(2026, 4, 5, 12, tzinfo=UTC)
    state = {"at": noon, "usd": Decimal("0.10"), "of": frozenset({"b", "a"}), "limits": _Limits(5, date(2026, 1, 2))}
    assert plain({**state, "nan": float("nan"), "none": None, "big": 10**20}) == {
        "at": "2026-04-05T12:00:00Z",
        "usd": "0.10",
        "of": ["a", "b"],
        "limits": {"burst": 5, "until": "2026-01-02"},
        "nan": "nan",
        "none": None,
        "big": 10**20,
    }


def test_long_texts_that_differ_late_stay_different() -> None:
    """What is cut off is named by its hash, so that a change in it is no less a change."""
    same = "x" * MAX_TEXT_CHARS
    assert plain(same + "a") != plain(same + "b")
    assert len(plain(same * 10)) < MAX_TEXT_CHARS + 100


def test_what_has_no_plain_form_is_a_mistake_of_ours() -> None:
    """Nothing is kept as `<object at 0x…>`, and nothing endless."""
    with pytest.raises(TypeError, match="bytes"):
        plain({"a": b"x"})
    deep: Any = {}
    for _ in range(10):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="deeper"):
        plain(deep)


@given(st.text())
def test_a_line_is_one_line(text: str) -> None:
    """Printable and bounded, whatever somebody called himself."""
    line = one_line(text, 20)
    assert len(line) <= 20
    assert line.isprintable()


_states = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(_states)
def test_whatever_state_becomes_one_json_text(state: Any) -> None:
    """Masking what was masked changes nothing more, and the text can be encoded."""
    try:
        shown = masked(plain(state))
    except ValueError:
        return
    canonical(shown).encode()
    assert masked(plain(shown)) == shown
