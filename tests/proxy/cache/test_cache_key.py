"""The name of an answer: what counts in it."""

import msgspec

from proxy.cache.cache_key import CHANGES_ANSWER, CHANGES_NOTHING, fields_of_body
from proxy.parse.headers import RequestHeaders


def test_each_header_that_is_read_counts_or_does_not() -> None:
    """A new one has to be thought of: the wrong answer is worse than none."""
    known = [*CHANGES_ANSWER, *CHANGES_NOTHING]
    assert sorted(known) == sorted(RequestHeaders.__struct_fields__)


def test_blanks_and_the_order_of_the_outermost_fields_do_not_count() -> None:
    """Further in, the order is told to models."""
    one, other = fields_of_body(b'{"b": [1, 2], "a": {"x":1, "y":2}}'), fields_of_body(b'{"a":{"x":1,"y":2},"b":[1,2]}')
    turned = fields_of_body(b'{"a":{"y":2,"x":1},"b":[1,2]}')
    assert one is not None
    assert other is not None
    assert turned is not None
    plain = [{name: bytes(value) for name, value in sorted(each.items())} for each in (one, other, turned)]
    assert plain[0] == plain[1] != plain[2]


def test_what_is_no_object_has_no_name() -> None:
    """Parsing has refused it before."""
    for body in (b"", b"[]", b"1", b"{", b"\xff", msgspec.json.encode("x"), b"[" * 100_000):
        assert fields_of_body(body) is None
