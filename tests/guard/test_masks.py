"""Masks, and the way back."""

import pytest

from guard.kinds import KINDS
from guard.lane import acted
from guard.masks import Masks, Unmasking
from guard.scan import Scanner

SCANNER = Scanner(KINDS.values())
KEY = b"k" * 32
SAID = 'Write to jane@example.com or "bob@example.com" with card 4111 1111 1111 1111.'


def masks(team_id: str = "team_a", key: bytes = KEY) -> Masks:
    """Return the masks of a new request."""
    return Masks(key, team_id, SCANNER.labels)


def masked(text: str, by: Masks) -> str:
    """Return the text with everything masked."""
    return acted(SCANNER, text, by.mask)


def test_a_value_is_masked_and_comes_back() -> None:
    """Cases 15 and 17: each value has one mask, in each turn the same."""
    first, second = masks(), masks()
    text = masked(SAID, first)
    assert "example.com" not in text
    assert "4111" not in text
    assert masked(SAID, second) == text
    assert first.unmasked(text) == SAID
    assert len(first) == 3


def test_a_mask_says_nothing_to_other_teams_or_without_the_key() -> None:
    """The same value is another mask elsewhere."""
    value = "jane@example.com"
    assert (
        len(
            {
                masks("a").mask("email", value),
                masks("b").mask("email", value),
                masks("a", b"z" * 32).mask("email", value),
            }
        )
        == 3
    )


def test_case_16_no_request_knows_the_values_of_another() -> None:
    """LL#19950: a mask of elsewhere stays what it is."""
    mask = masks().mask("email", "jane@example.com")
    other = masks()
    other.mask("email", "bob@example.com")
    assert other.unmasked(f"to {mask}") == f"to {mask}"


def test_case_18_what_is_masked_stays_as_it_is() -> None:
    """A second pass changes nothing."""
    text = masked(SAID, masks())
    assert masked(text, masks()) == text


def test_values_that_read_alike_have_one_mask() -> None:
    """So that a model sees one person."""
    by = masks()
    assert by.mask("email", "jane@example.com") == by.mask("email", "ja\u200bne@example.com")


def test_two_values_of_one_request_never_share_a_mask() -> None:
    """A longer one is taken where the first thirty bits are alike."""
    by = masks()
    values = [f"{number}@example.com" for number in range(60_000)]
    given = [by.mask("email", value) for value in values]
    assert len(set(given)) == len(values)
    assert [by.unmasked(mask) for mask in given] == values
    assert max(map(len, given)) > min(map(len, given))


@pytest.mark.parametrize("change", [str.lower, lambda mask: mask.replace("_", r"\_"), lambda mask: rf"\{mask[:-1]}\]"])
def test_a_mask_that_a_model_wrote_otherwise_comes_back(change: object) -> None:
    """Some change its case, or escape it for Markdown."""
    assert callable(change)
    by = masks()
    mask = by.mask("email", "jane@example.com")
    assert by.unmasked(f"to {change(mask)}.") == "to jane@example.com."


def test_case_14_a_mask_split_anywhere_comes_back() -> None:
    """voidllm#137: at each offset, and one character at a time."""
    by = masks()
    text = masked(SAID, by) + " a[0] [not_one] [EMAIL_ [ \\["
    wanted = by.unmasked(text)
    for place in range(len(text) + 1):
        lane = Unmasking(by)
        assert lane.feed(text[:place]) + lane.feed(text[place:]) + lane.finish() == wanted
    lane = Unmasking(by)
    assert "".join(lane.feed(char) for char in text) + lane.finish() == wanted


def test_prose_is_not_held() -> None:
    """Only what a mask may begin with waits."""
    by = masks()
    by.mask("email", "jane@example.com")
    lane = Unmasking(by)
    assert lane.feed("a[i] = b and so on") == "a[i] = b and so on"
    assert lane.feed("see [EMAIL") == "see "
    assert lane.feed(" address]") == "[EMAIL address]"
