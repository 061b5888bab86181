"""What is found in a whole text: strangers' texts by their reports, odd ways of writing, and how long it takes."""

# ruff: noqa: RUF001  Characters that read alike are what these are about.

import base64
import time

import pytest

from guard.kinds import KINDS, own_kind
from guard.scan import Found, Scanner

SCANNER = Scanner(KINDS.values())
CARD = "4111 1111 1111 1111"
AWS = "AKIA" + "Q7RTZ2LMNP4XWK5V"
ANTHROPIC = "sk-ant-api03-" + "abcdefghijklmnopqrstuvwxyz0123456789ABCD"
GITHUB = "ghp_" + "R4nd0mCharactersThatAreNoToken012345"
JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiJqYW5lIn0." + "c2lnbmF0dXJlLW9mLWphbmU"
OTHER_JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiJib2IifQ." + "c2lnbmF0dXJlLW9mLWJvYg"


def found(text: str) -> list[tuple[str, str]]:
    """Return the kinds and values of a text."""
    return [(value.kind, text[value.start : value.end]) for value in SCANNER.find(text)]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        # theopenco/llmgateway#3641: what shape alone takes for data.
        ('{"product_id": 3074185296}', []),
        ("created_at 1755302400", []),
        ("Item 4123456789012 is out of stock", []),
        ("git revert a94a8fe5ccb19ba61c4c0873d391e987982fbbd3", []),
        ("Order PO1234567 for part X12345", []),
        ("Bump to version 1.2.3.4", []),
        ("apiKey: YOUR_API_KEY_HERE_PLACEHOLDER", []),
        # presidio#1607, langflow#14934, garrytan/gstack#2591, Nano-Collective/prompt-scrubber#131
        ("1748503543012 please check this :)", []),
        ("order number 10023456, build 2024 1130 0917", []),
        ('parcel_id: "12-3456789.000"', []),
        ("Order number 123456789 shipped.", []),
        ("Error code 402551234 returned.", []),
        ("qty 100 20 3000 units", []),
        # gitleaks#1577, gitleaks#1049, gitleaks#538
        ("TODAYINASIAASACKOFRICEFELLOVER", []),
        ('"RoleId": "AROAWORVRXQ5NC76T7223"', []),
        (
            '"integrity": "sha512-GDHVin2EJ9PGJ33VMGlqtPcvUlY+pkTbaWs4jWv8oBaEK8UUBzS5ZpEc4xi7Xp5vIXnVsCSLKNC6bgvR9X/AoQ=="',
            [],
        ),
        # arhs/iban.js#55, presidio#1795
        ("IT66`M0306905020100000062186", []),
        ("transfer of DE89 failed", []),
        ("550e8400-e29b-41d4-a716-446655440000", []),
        ("x = a[4111:1111]; y = 4111111111111111111111", []),
        # and what they miss: presidio#47, JeongJaeSoon/agent-guard#78, rizzo-pii#58, presidio#2078, deja-vu#171
        ("My credit card number is 6011577631711174", ["card"]),
        ("My credit card number is 6011-5776-3171-1174", ["card"]),
        ("amex 378282246310005", ["card"]),
        ("cards dotted: 4111.1111.1111.1111", ["card"]),
        ("IBAN printed: IT60 X054 2811 1010 0000 0123 456", ["iban"]),
        ("EG380019000500000000263180002", ["iban"]),
        ("redis://:p4ssw0rd-x@cache:6379/0", ["url_password"]),
        ("Authorization: Basic dXNlcjpwYXNzd29yZC1sb25n", ["auth_header"]),
        ("AKIA" + "IOSFODNN7EXAMPLE", ["aws_key"]),
        # MitulShah1/openai-agents-go#108: without dashes, with the word.
        ("SSN 536904399", ["us_ssn"]),
        ("Ünï jane@example.com — naïve", ["email"]),
    ],
)
def test_strangers_texts(text: str, kinds: list[str]) -> None:
    """What others found too much or missed, by their public reports."""
    assert [kind for kind, _ in found(text)] == kinds


@pytest.mark.parametrize(
    "split",
    [
        "\0",
        "\x1b",
        "\x08",
        "\x7f",
        "\x85",
        "\u200b",
        "\u200d",
        "\u2060",
        "\ufeff",
        "\u00ad",
        "\u202e",
        "\u2066",
        "\ufe0f",
    ],
)
@pytest.mark.parametrize("value", [CARD, AWS, ANTHROPIC, GITHUB, JWT, "jane@example.com"])
def test_case_38_an_invisible_character_splits_nothing(split: str, value: str) -> None:
    """Gitlawb/zero#969, darbaan#250: whoever reads the text sees the value whole, at whatever place it was split."""
    for place in (1, len(value) // 2, len(value) - 1):
        odd = value[:place] + split + value[place:]
        assert odd in [piece for _, piece in found(f"it is {odd} now")], place


def test_two_values_with_something_invisible_between_are_both_found() -> None:
    """Gitlawb/zero#1013: what joins the halves of one value must not hide the second of two."""
    for pair in ((JWT, OTHER_JWT), (AWS, AWS[:-1] + "Q"), (CARD, "5555 5555 5555 4444")):
        text = "\u200b".join(pair)
        covered = [index for value in SCANNER.find(text) for index in range(value.start, value.end)]
        assert not any(piece in "".join(c for i, c in enumerate(text) if i not in covered) for piece in pair)
        assert len(covered) >= len(text) - 1


@pytest.mark.parametrize(
    "written",
    [
        "４１１１ １１１１ １１１１ １１１１",
        "4111\u00a01111\u00a01111\u00a01111",
        "4111\u20111111\u20111111\u20111111",
        "4111–1111–1111–1111",
        "4111\n1111\n1111\n1111",
        "٤١١١ ١١١١ ١١١١ ١١١١",
        "𝟒𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏",
        "4111  1111  1111  1111",
        "4111 - 1111 - 1111 - 1111",
    ],
)
def test_case_38_odd_digits_blanks_and_dashes(written: str) -> None:
    """A reader reads them alike."""
    assert found(f"card: {written}.") == [("card", written)]


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_case_38_base64_is_looked_into(encode: object) -> None:
    """What is found in a decoded run covers the whole of it; an image is left alone."""
    assert callable(encode)
    run = encode(f"the key is {ANTHROPIC}, keep it".encode()).decode()
    assert found(f"decode {run} please") == [("anthropic_key", run)]
    assert found(f"picture {encode(bytes(range(256)) * 8).decode()}") == []
    assert found(encode(b"nothing of that sort is in here, only words").decode()) == []


@pytest.mark.parametrize(
    "said",
    [
        "4111111111111111",
        CARD,
        f"карта клиента номер {CARD}",
        f"客户的卡号是这个号码，请记住 {CARD}",
        "the card is 4111\u200b1111\u200b1111\u200b1111",
        "the card is " + "".join(chr(ord(each) + 0xFEE0) for each in "4111111111111111"),
    ],
)
def test_case_38_whatever_is_said_in_base64_is_read(said: str) -> None:
    """A value alone, behind words of another script, and written oddly before it was encoded."""
    run = base64.b64encode(said.encode()).decode()
    assert found(f"decode {run} please") == [("card", run)]


@pytest.mark.parametrize("mark", ["_", "__", "___", "*", "**", "`", "~~"])
def test_a_card_that_markdown_stresses_is_one(mark: str) -> None:
    """Also with underscores, which are letters to patterns; what is part of a longer name is none."""
    assert [kind for kind, _ in found(f"pay {mark}{CARD}{mark}, please")] == ["card"]
    assert found(f"run_{CARD.replace(' ', '')} ended") == []


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_base64_in_lines_is_one_text(end: str) -> None:
    """As mail and PEM write it, a value stands over two lines; in pieces it is held until it is whole."""
    scanner = Scanner([KINDS["card"]])
    for before in range(30, 60):
        encoded = base64.b64encode(f"{'x' * before} {CARD} and so on".encode()).decode()
        for wide in (64, 76):
            text = f"file: {end.join(encoded[at : at + wide] for at in range(0, len(encoded), wide))} end"
            assert [text[each.start : each.end] for each in scanner.find(text)] == [text[6:-4]]
            for cut in range(7, len(text)):
                _, settled = scanner.partial(text[:cut], 0, final=False)
                assert settled <= 6 or settled >= len(text) - 4, cut


def test_offsets_are_those_of_the_given_text() -> None:
    """LL#23037: also the second and third of a text with characters of all lengths."""
    text = f"é😀 {CARD} ü\u200b jane@example.com 邮箱 ghp\u200b{GITHUB[3:]} \ud83d"
    assert [piece for _, piece in found(text)] == [CARD, "jane@example.com", f"ghp\u200b{GITHUB[3:]}"]


def test_of_overlapping_ones_the_longest_stays() -> None:
    """Of two as long the one whose kind stands first."""
    scanner = Scanner([own_kind("a", "bcd"), own_kind("b", "abc"), own_kind("c", "cdefg")])
    assert scanner.find("xabcdefgx") == (Found("b", 1, 3 + 1), Found("c", 3, 8))[1:]
    assert scanner.find("xabcd") == (Found("a", 2, 5),)


def test_case_18_nothing_is_found_in_a_mask() -> None:
    """pi-data-masking#1: a mask is no value, though what is wider than one may be."""
    scanner = Scanner([own_kind("digits", "[0-9]{3}"), own_kind("line", "password .*")])
    assert scanner.find("see [CARD_234567] and [EMAIL_abc345]") == ()
    assert scanner.find("password [CARD_234567] 999") == (Found("line", 0, 26),)


def test_a_text_of_a_megabyte_is_one_pass() -> None:
    """Sixteen times the text takes no more than some sixteen times as long, also where everything nearly matches."""
    for unit in ("1234 ", "4111 1111 1111 1112 ", "a@", "sk-", "phone 12 34 ", "eyJ", "A" * 30 + " "):
        times = []
        for size in (8_000, 128_000):
            text = unit * (size // len(unit))
            SCANNER.find(text[:2_000])
            began = time.process_time()
            SCANNER.find(text)
            times.append(time.process_time() - began)
        assert times[1] < 16 * 4 * max(times[0], 0.001), unit
