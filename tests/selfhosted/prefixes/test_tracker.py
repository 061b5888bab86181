"""How beginnings are counted: what is broken, what is not, and that nothing grows."""

import random
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.times import DAY_US
from selfhosted.prefixes.tracker import VARIOUS, HabitDelta, HabitLimits, PrefixTracker

KEY = b"a key of this test"
RULES = "You answer questions about orders. Be kind and brief. Never promise a refund to anybody. " * 20
DAY = 20_000 * DAY_US


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return DAY + int(self.now * 1_000_000)


def habits(clock: Clock | None = None, **limits: int) -> PrefixTracker:
    clock = clock or Clock()
    return PrefixTracker(key=KEY, limits=HabitLimits(**limits), now_us=clock.wall_us, clock=clock)


def see(found: PrefixTracker, texts: Iterator[str] | list[str], team: str = "t", tokens: int = 1_000) -> None:
    for text in texts:
        found.observe("acme", team, "llama", text.encode(), tokens, prompt_bytes=4 * tokens)
        found.digest()


def only(found: PrefixTracker) -> HabitDelta:
    (delta,) = found.take()
    return delta


def test_a_timestamp_breaks_every_request() -> None:
    """Each request whose time is another is broken; the tokens before it stay, those behind it are lost."""
    found = habits()
    see(found, [f"Hello. It is 2026-11-22T10:00:{second:02}Z. {RULES}" for second in range(50)])
    delta = only(found)
    assert (delta.requests, delta.broken, delta.kinds) == (50, 49, ("time",))
    assert delta.first_break_tokens == len("Hello. It is ") // 4
    assert delta.broken_tokens == 49 * (len(f". {RULES}") // 4)
    assert (delta.day_us, delta.organisation_id, delta.prompt_tokens) == (DAY, "acme", 50_000)


def test_a_date_breaks_once_a_day() -> None:
    """A beginning that is the same all day is broken by the first request of the next."""
    found = habits()
    see(found, [f"Today is 2026-11-{day:02}. {RULES}" for day in (22, 23) for _ in range(100)])
    delta = only(found)
    assert (delta.requests, delta.broken, delta.kinds) == (200, 1, ("date",))


def test_what_comes_again_is_not_broken() -> None:
    """Two users in turn have two beginnings, and a cache keeps both."""
    found = habits()
    see(found, [f"User {user}. {RULES}" for _ in range(100) for user in (17, 18)])
    delta = only(found)
    assert (delta.requests, delta.broken) == (200, 1)


def test_what_was_not_seen_for_long_is_not_broken_either() -> None:
    """After an hour nobody has it in a cache any more, whatever stood before it."""
    clock = Clock()
    found = habits(clock)
    see(found, [f"User 17. {RULES}", f"User 18. {RULES}"])
    clock.now += 7_200
    see(found, [f"User 17. {RULES}"])
    assert only(found).broken == 1


def test_a_name_that_no_mask_knows() -> None:
    """Different names in one prompt are one habit, of the kind `other`, and its name is the same in each process."""
    one, other = habits(), habits()
    for at, each in enumerate((one, other)):
        names = ["Alice", "Bob", "Carol", "Dan", "Eve", "Frank"]
        see(each, [f"You help {name}.\n{RULES}" for name in names[at:]])
    first, second = only(one), only(other)
    assert (first.requests, first.broken, first.kinds) == (6, 5, ("other",))
    assert (second.requests, second.broken) == (5, 4)
    assert first.skeleton == second.skeleton


def test_two_prompts_are_two_habits() -> None:
    """Prompts that have nothing in common do not break each other."""
    found = habits()
    other = "Translate what you are given into French, word for word, and nothing else at all. " * 20
    see(found, [text for _ in range(10) for text in (RULES, other)])
    assert sorted((each.requests, each.broken) for each in found.take()) == [(10, 0), (10, 0)]


def test_of_very_many_a_sample_stands_for_all() -> None:
    """What does not fit is not looked at, and is counted with what was: no request is lost."""
    found = habits()
    for number in range(1_000):
        found.observe("acme", "t", "llama", f"Request {number}. {RULES}".encode(), 1_000)
        if number % 50 == 49:
            assert found.waiting <= 2
            found.digest()
    # The last to be skipped are counted with the next that is looked at.
    see(found, [f"Request 1000. {RULES}"])
    delta = only(found)
    assert (delta.requests, delta.prompt_tokens) == (1_001, 1_001_000)
    assert 950 <= delta.broken <= 1_000


def test_the_same_new_beginning_many_times_at_once() -> None:
    """Many requests with one new beginning wait as one, and only the first of them can be broken."""
    found = habits()
    see(found, [f"Today is 2026-11-22. {RULES}"])
    for _ in range(100):
        found.observe("acme", "t", "llama", f"Today is 2026-11-23. {RULES}".encode(), 1_000)
    found.digest()
    delta = only(found)
    assert (delta.requests, delta.broken) == (101, 1)


def test_rare_beginnings_have_no_row_of_their_own() -> None:
    """What comes once is counted as various, and a stream of prompts that are all different makes few rows."""
    found = habits()
    rng = random.Random(3)
    see(found, [f"{rng.randbytes(200).hex(' ', 5).translate(NO_DIGITS)}. {RULES[:90]}" for _ in range(200)])
    deltas = [*found.take(), *found.take(everything=True)]
    assert {each.skeleton for each in deltas} == {VARIOUS}
    assert sum(each.requests for each in deltas) == 200


def test_teams_are_apart() -> None:
    """The same prompt of two teams is two habits: neither breaks the other's."""
    found = habits()
    for day in (1, 2, 3, 4):
        see(found, [f"Today is 2026-11-0{day}. {RULES}"], team=f"team_{day % 2}")
    deltas = found.take(everything=True)
    assert sorted((each.team_id, each.requests, each.broken) for each in deltas) == [("team_0", 2, 1), ("team_1", 2, 1)]


def test_what_was_put_back_is_taken_again() -> None:
    """A failed write loses nothing and counts nothing twice."""
    found = habits()
    see(found, [f"Turn {number}. {RULES}" for number in range(10)])
    taken = found.take()
    found.put_back(taken)
    assert found.take() == taken
    assert found.take() == ()


def test_an_empty_beginning_is_nothing() -> None:
    """A request without a system prompt and tools has no habit."""
    found = habits()
    found.observe("acme", "t", "llama", b"", 10)
    assert (found.waiting, found.take(everything=True)) == (0, ())


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 30), st.booleans(), st.booleans()), max_size=120
    )
)
def test_every_request_counts_once(stream: list[tuple[str, int, bool, bool]]) -> None:
    """Whatever the limits let go, requests add up, and no more are broken than there were."""
    found = habits(keys=2, families=2, raws=3, waiting=2, waiting_a_key=1, named_a_day=2)
    deltas: list[HabitDelta] = []
    for team, number, is_digested, is_taken in stream:
        found.observe("acme", team, "llama", f"{'xyz'[number % 3]} turn {number}. {RULES[:300]}".encode(), 7)
        if is_digested:
            found.digest()
        if is_taken:
            deltas += found.take()
    # One more of each, alone, so that the skipped ones are counted.
    for team in ("a", "b", "c", "d"):
        found.observe("acme", team, "llama", b"x", 7)
        found.digest(10)
        found.observe("acme", team, "llama", f"once more {team}".encode(), 7)
        found.digest(10)
    deltas += found.take(everything=True)
    assert sum(each.requests for each in deltas) == len(stream) + 8
    assert sum(each.prompt_tokens for each in deltas) == 7 * (len(stream) + 8)
    assert all(0 <= each.broken <= each.requests for each in deltas)


@pytest.mark.parametrize("is_digested", [True, False])
def test_memory_is_bounded(is_digested: bool) -> None:
    """Teams, targets and prompts that never come twice leave no more behind than the limits say."""
    found = habits(keys=5, pending=20)
    rng = random.Random(5)
    tracemalloc.start()
    try:
        for number in range(150):
            text = rng.randbytes(3_000).hex("\n", 7)
            found.observe("acme", f"team_{number % 15}", "llama", text.encode(), 3_000)
            if is_digested and number % 2:
                found.digest(2)
        used, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Five keys of 8 shapes of 4 KB with their hashes, and what waits: two texts of 7 KB for each.
    assert used < 5 * 8 * 8_000 + 10 * 8_000


NO_DIGITS = str.maketrans("0123456789", "ghijklmnop")
