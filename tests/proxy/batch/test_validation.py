"""Validation of input files, whatever their pieces are."""

from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from proxy.batch.validation import LineSize, Validated, Validation


def check(content: bytes, pieces: int = 10**6, **limits: int) -> Validated:
    given = {"max_lines": 100, "max_line_bytes": 10_000, **limits}
    validation = Validation("/v1/chat/completions", bound=lambda size: size.body_bytes, **given)
    for start in range(0, len(content), pieces):
        validation.feed(content[start : start + pieces])
    return validation.end()


def line(custom_id: str, **body: Any) -> bytes:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    return msgspec.json.encode({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": asked})


def codes(found: Validated) -> list[tuple[str, int | None]]:
    return [(each.code, each.line) for each in found.problems]


@given(
    contents=st.lists(st.text(max_size=30), min_size=1, max_size=20),
    pieces=st.integers(1, 200),
    end=st.booleans(),
    blank=st.booleans(),
)
def test_each_line_is_found_where_it_stands(contents: list[str], pieces: int, end: bool, blank: bool) -> None:
    """Its offset and size give back exactly its bytes, however the file arrived."""
    lines = [line(f"c{number}", user=text) for number, text in enumerate(contents)]
    content = (b"\n\n" if blank else b"\n").join(lines) + (b"\n" if end else b"")
    found = check(content, pieces)
    assert found.problems == []
    assert [content[each.start : each.start + each.size] for each in found.lines] == lines
    assert [each.number for each in found.lines] == [(1 + blank) * number + 1 for number in range(len(lines))]
    assert sorted(each.place for each in found.lines) == list(range(len(lines)))


def test_lines_that_begin_alike_are_begun_after_each_other() -> None:
    """First by model, then by the first message; the order of the file decides among the rest."""
    system = [{"role": "system", "content": "You are terse."}]
    other = [{"role": "system", "content": "You are long."}]
    asked = [("m", system), ("k", system), ("m", other), ("m", system), ("k", system), ("m", other)]
    content = b"\n".join(
        line(f"c{number}", model=model, messages=messages) for number, (model, messages) in enumerate(asked)
    )
    found = check(content)
    begun = [asked[each.number - 1] for each in sorted(found.lines, key=lambda each: each.place)]
    changes = sum(before != after for before, after in pairwise(begun))
    assert changes == 2
    assert found.model is None


def test_a_line_that_is_too_long_ends_it_before_it_is_read_whole() -> None:
    """What is held never grows beyond the limit and one piece."""
    validation = Validation("/v1/chat/completions", max_lines=10, max_line_bytes=1_000, bound=lambda _size: 0)
    validation.feed(line("a") + b"\n")
    for _ in range(100):
        validation.feed(b"x" * 500)
        if validation.is_hopeless:
            break
    assert len(validation._held) <= 1_500
    assert codes(validation.end()) == [("line_too_large", 2)]


def test_too_many_lines_are_told_once() -> None:
    """With the line that is one too many."""
    content = b"\n".join(line(f"c{number}") for number in range(300))
    assert codes(check(content, max_lines=5)) == [("too_many_requests", 6)]


def test_problems_are_bounded() -> None:
    """A file of nonsense gives a hundred of them and no more."""
    assert len(check(b"nonsense\n" * 10_000).problems) == 100


def test_what_a_line_may_need_is_bounded_by_what_it_says() -> None:
    """Tokens of prompt and of the longest answer of all choices."""
    sizes: list[LineSize] = []

    def bound(size: LineSize) -> int:
        sizes.append(size)
        return 5

    validation = Validation("/v1/chat/completions", max_lines=10, max_line_bytes=10_000, bound=bound)
    validation.feed(line("a", max_tokens=50, max_completion_tokens=70, n=3) + b"\n" + line("b", max_tokens="x", n=True))
    found = validation.end()
    assert [(size.max_output_tokens, size.choices) for size in sizes] == [(70, 3), (None, 1)]
    assert found.lines[0].tokens == sizes[0].input_tokens + 210
    assert (found.bound_nanousd, found.reserved_nanousd) == (10, 10)


@given(st.binary(max_size=300))
def test_no_bytes_break_it(content: bytes) -> None:
    """Whatever comes is either sound or told."""
    found = check(content)
    assert found.problems or found.lines
