"""How many lines a process claims ahead, and which it lets go."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.batch.batch import ClaimedLine
from proxy.batch.prefetch import MOST_AHEAD, Prefetch, next_group, to_claim


class _Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _lines(first: int, count: int, batch_id: str = "b") -> list[ClaimedLine]:
    return [
        ClaimedLine(
            batch_id=batch_id, number=number, custom_id=f"c{number}", start=0, size=1, tokens=1, bound_nanousd=None,
            generation=1, failures=0, place=number,
        )
        for number in range(first, first + count)
    ]  # fmt: skip


@given(
    missing=st.integers(-300, 300), group=st.integers(1, 10_000), left=st.integers(0, 10**6), kept=st.integers(0, 2_000)
)
def test_a_claim_is_enough_and_bounded(missing: int, group: int, left: int, kept: int) -> None:
    """What is begun at once is always claimed; beyond it only what fits, and what leaves others the most of a batch."""
    claimed = to_claim(missing, group, left, kept)
    assert claimed >= max(0, missing)
    if claimed > max(0, missing):
        assert missing >= 1
        assert claimed - missing <= MOST_AHEAD - kept
        assert claimed <= group
        assert claimed <= left / 8


def test_groups_grow_with_the_pace() -> None:
    """A group that is gone at once doubles, one that lasts stays, and one that lies about halves."""
    assert [next_group(8, 0.1), next_group(8, 2.0), next_group(8, 5.0)] == [16, 8, 4]
    assert next_group(MOST_AHEAD, 0.0) == MOST_AHEAD
    assert next_group(1, 60.0) == 1


def test_quick_lines_are_claimed_many_at_a_time() -> None:
    """A process that begins eight lines every tenth of a second soon asks the database once in thirty times."""
    clock = _Seconds()
    ahead = Prefetch(clock)
    claims: list[int] = []
    begun: list[int] = []
    for _ in range(200):
        wanted = ahead.wanted("b", 8, left=50_000)
        if wanted:
            ahead.add("b", _lines(sum(claims), wanted))
            claims.append(wanted)
        begun += [line.number for line in ahead.begin("b", 8)]
        clock.now += 0.1
    assert begun == list(range(1_600))
    assert len(claims) < 40
    assert max(claims) <= MOST_AHEAD


def test_the_end_of_a_batch_is_shared() -> None:
    """Where few lines are left, none beyond those that are begun are claimed."""
    ahead = Prefetch(_Seconds())
    ahead.add("b", _lines(0, 100))
    ahead.begin("b", 100)
    assert ahead.wanted("b", 8, left=40) == 8


def test_what_others_could_begin_is_let_go() -> None:
    """Lines of a batch that has ended at once, others when they have lain about too long."""
    clock = _Seconds()
    ahead = Prefetch(clock)
    ahead.add("ended", _lines(0, 2, "ended"))
    ahead.add("slow", _lines(0, 3, "slow"))
    assert {line.batch_id for line in ahead.stale({"slow"}, 30.0)} == {"ended"}
    assert ahead.stale({"slow"}, 30.0) == []
    clock.now += 31
    assert len(ahead.stale({"slow"}, 30.0)) == 3
    assert len(ahead) == 0
