"""The engine model, beside what can be computed by hand, and what must hold whatever comes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.engine import NEVER, Engine, Job
from planner.simulate.simulation_errors import SimulationRefused
from tests.examples import examples
from tests.planner.simulate.steps import GROWING, HAND, Told, job, run, spec


def test_one_request_alone() -> None:
    """Its first token comes when its prompt is read, in one step; each further token takes one step."""
    told = Told()
    engine = Engine(spec(), HAND, told)
    one = job(40, 4)
    engine.enqueue(one, 0.0)
    run(engine)
    # 1 + 40 x 0.01; then three steps of 1 + 0.01.
    assert told.of(one) == [(1.4, "first_token"), (4.43, "done")]
    assert engine.ends == NEVER
    assert engine.kv.used == 0
    assert (engine.prompt_tokens, engine.output_tokens, engine.computed_tokens) == (40, 4, 40)
    assert engine.busy_s == pytest.approx(4.43)


def test_long_prompt_in_chunks() -> None:
    """A prompt longer than a step's budget is read in several steps."""
    told = Told()
    engine = Engine(spec(), HAND, told)
    one = job(150, 1)
    engine.enqueue(one, 0.0)
    run(engine)
    # 64 + 64 + 22 tokens in three steps.
    assert told.of(one) == [(4.5, "first_token"), (4.5, "done")]


def test_generation_goes_on_beside_a_prompt() -> None:
    """A sequence that generates gets its token in each step, which a prompt beside it makes longer; it takes a token of
    the budget.
    """
    told = Told()
    engine = Engine(spec(), HAND, told)
    first, second = job(10, 10), job(126, 2, at=2.0)
    engine.enqueue(first, 0.0)
    engine.advance(2.0)
    engine.enqueue(second, 2.0)
    run(engine)
    # First: 1.1; its step in flight ends at 2.11; then 63 + 1 tokens, twice (1.64 each): 5.39.
    assert told.of(second)[0] == (5.39, "first_token")
    # One step of both; then six of the first alone: 1 + 1 + 2 + 6 = 10 tokens with its first.
    assert told.of(second)[1] == (6.41, "done")
    assert told.of(first)[-1] == (round(6.41 + 5 * 1.01, 9), "done")


def test_two_with_a_shared_prefix() -> None:
    """The second reads only what is not cached: whole blocks of the first's prompt are, the rest is not."""
    told = Told()
    engine = Engine(spec(), HAND, told)
    first, second = job(40, 1, (1, 2, 3)), job(50, 1, (1, 2, 4, 5), at=5.0)
    engine.enqueue(first, 0.0)
    engine.advance(5.0)
    assert engine.cached(second) == 32
    engine.enqueue(second, 5.0)
    run(engine)
    # 50 - 2 x 16 = 18 tokens.
    assert told.of(second)[0] == (6.18, "first_token")
    assert second.cached_tokens == 32
    assert (engine.prefix_queries, engine.prefix_hits) == (90, 32)


def test_whole_prompt_cached() -> None:
    """Of a prompt that is cached as a whole the last block is read anew: its end gives the first token."""
    engine = Engine(spec(), HAND)
    first, second = job(32, 1, (1, 2)), job(32, 1, (1, 2), at=5.0)
    engine.enqueue(first, 0.0)
    engine.advance(5.0)
    engine.enqueue(second, 5.0)
    run(engine)
    assert second.cached_tokens == 16
    assert second.first_token_at == pytest.approx(5.0 + 1.16)


def test_at_the_same_time_nothing_is_shared_yet() -> None:
    """Two alike prompts in one step are both read: what is not computed cannot be found."""
    engine = Engine(spec(), HAND)
    # While the first is read, the two that are alike arrive, and are then read in one step.
    for each in (job(10, 1), job(32, 1, (1, 2)), job(32, 1, (1, 2))):
        engine.enqueue(each, 0.0)
    run(engine)
    assert engine.computed_tokens == 10 + 32 + 32
    assert engine.kv.cached == 8  # In blocks of four tokens: one copy.


def test_without_prefix_caching() -> None:
    """Switched off, nothing is found and nothing is kept."""
    engine = Engine(spec(prefix_caching=False), HAND)
    for at in (0.0, 50.0):
        engine.advance(at)
        engine.enqueue(job(40, 1, (1, 2, 3), at=at), at)
    run(engine)
    assert (engine.prefix_hits, engine.kv.cached) == (0, 0)


def test_full_cache_makes_the_next_wait() -> None:
    """Who finds no room waits until somebody has ended, and is not counted as running."""
    told = Told()
    engine = Engine(spec(64), HAND, told)
    first, second = job(40, 5), job(40, 1)
    engine.enqueue(first, 0.0)
    engine.enqueue(second, 0.0)
    engine.advance(2.0)
    stats = engine.stats(2.0)
    assert (stats.running, stats.waiting) == (1, 1)
    run(engine)
    end = told.of(first)[-1][0]
    assert end == pytest.approx(1.4 + 4 * 1.01)
    assert told.of(second)[0][0] == pytest.approx(end + 1.4)
    assert engine.preemptions == 0


def test_old_blocks_make_room() -> None:
    """Cached blocks that nobody holds are evicted, the oldest and of a prompt its end first."""
    engine = Engine(spec(64), HAND)
    for at, blocks in ((0.0, (1, 2)), (10.0, (3,)), (20.0, (4,))):
        engine.advance(at)
        engine.enqueue(job(33 if len(blocks) > 1 else 17, 1, blocks, at=at), at)
    run(engine)
    # 64 tokens are four blocks of 16: 1, 2, 3 and 4 fit, beside nothing else.
    assert engine.kv.matched((1, 2)) == 1
    assert engine.kv.matched((3,)) == engine.kv.matched((4,)) == 1


def test_answers_keep_their_place_until_they_are_the_oldest() -> None:
    """What ended is overwritten in the order in which it ended, answers before their prompts, and not answers first."""
    engine = Engine(spec(64), HAND)
    for at, block in ((0.0, 1), (100.0, 2), (200.0, 3)):
        engine.advance(at)
        engine.enqueue(job(17, 15, (block,), at=at), at)
    run(engine)
    # 32 tokens each: the third takes the place of all of the first, though the second's answer is of no use to anybody.
    assert [engine.kv.matched((block,)) for block in (1, 2, 3)] == [0, 1, 1]


def test_preemption() -> None:
    """When growing sequences find no room, the last one gives up its own, waits, and reads everything anew."""
    told = Told()
    engine = Engine(spec(48), HAND, told)
    first, second = job(20, 12), job(16, 8)
    engine.enqueue(first, 0.0)
    engine.enqueue(second, 0.0)
    run(engine)
    assert (first.preemptions, second.preemptions, engine.preemptions) == (0, 1, 1)
    # The prompts are read at 1.2 and 2.37. Four steps of both later 7 + 5 blocks, all twelve, are taken, and the second
    # needs another: it has generated 5. The first's last six tokens end at 12.51. Then the second reads 16 + 5 anew,
    # which gives its sixth token, and two more follow.
    assert told.of(first) == [(1.2, "first_token"), (12.51, "done")]
    assert told.of(second) == [(2.37, "first_token"), (15.74, "done")]
    assert engine.computed_tokens == 20 + 16 + 21
    assert engine.output_tokens == 20


def test_priority_order() -> None:
    """With priority scheduling the urgent one overtakes who waits; without, it waits its turn."""
    for on, expected in ((True, ["running", "urgent", "patient"]), (False, ["running", "patient", "urgent"])):
        told = Told()
        engine = Engine(spec(max_num_seqs=1, priority_scheduling=on), HAND, told)
        names = {"running": job(10, 5), "patient": job(10, 5, priority=5), "urgent": job(10, 5, priority=0)}
        for each in names.values():
            engine.enqueue(each, 0.0)
        run(engine)
        ends = [which for _, what, which in told.events if what == "done"]
        assert [next(name for name, each in names.items() if each is which) for which in ends] == expected


def test_least_urgent_is_preempted() -> None:
    """With priority scheduling the least urgent gives up its room, though it came first."""
    engine = Engine(spec(48, priority_scheduling=True), HAND)
    patient, urgent = job(20, 12, priority=5), job(16, 8, priority=0)
    engine.enqueue(patient, 0.0)
    engine.enqueue(urgent, 0.0)
    run(engine)
    assert (patient.preemptions > 0, urgent.preemptions) == (True, 0)


def test_steps_are_skipped_not_changed() -> None:
    """Asked often or not at all in between, alike steps end at the same moments, growing caches included."""
    asked, left = Told(), Told()
    for told, often in ((asked, True), (left, False)):
        engine = Engine(spec(), GROWING, told)
        engine.enqueue(job(10, 60), 0.0)
        engine.enqueue(job(20, 30), 0.0)
        if often:
            at = 0.0
            while not engine.empty:
                at += 7.3
                engine.advance(at)
                engine.stats(at)
        run(engine)
    assert [at for at, *_ in asked.events] == pytest.approx([at for at, *_ in left.events])


def test_growing_steps_by_hand() -> None:
    """A step is as long as what is resident when it begins."""
    told = Told()
    engine = Engine(spec(), GROWING, told)
    one = job(10, 4)
    engine.enqueue(one, 0.0)
    run(engine)
    # The prompt: 1. Then 1 + 0.5 x (10, 11, 12).
    assert told.of(one) == [(1.0, "first_token"), (1.0 + 6.0 + 6.5 + 7.0, "done")]


def test_statistics_between_steps() -> None:
    """A scrape in the middle sees what has ended until then, and no more."""
    engine = Engine(spec(), HAND)
    engine.enqueue(job(40, 100), 0.0)
    assert engine.stats(1.0).output_tokens == 0
    engine.advance(1.5)
    assert engine.stats(1.5).output_tokens == 1
    engine.advance(1.4 + 10 * 1.01 + 0.5)
    stats = engine.stats(1.4 + 10 * 1.01 + 0.5)
    assert (stats.running, stats.output_tokens) == (1, 11)
    # 40 tokens and 10 more are 13 blocks of 4; the cache has 256.
    assert stats.kv_usage == 13 / 256
    assert stats.kv_tokens == 1_024


def test_the_oracle_is_right() -> None:
    """What the engine expects is what comes to pass when nothing else arrives."""
    engine = Engine(spec(), HAND)
    engine.enqueue(job(100, 30, (1, 2, 3, 4, 5, 6, 7)), 0.0)
    engine.enqueue(job(50, 30, (8, 9, 10, 11)), 0.0)
    engine.advance(0.5)
    asked = job(90, 2, (1, 2, 30, 31, 32, 33), at=0.5)
    expected = engine.expected_ttft_s(asked, 0.5)
    engine.enqueue(asked, 0.5)
    run(engine)
    assert asked.first_token_at is not None
    assert asked.first_token_at - 0.5 == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(
    ("kv_tokens", "shared_tokens", "batched_tokens", "said"),
    [(1_024, 18, 64, "whole number"), (1_024, 16, 8, "never progress"), (8, 16, 64, "holds no prompt")],
)
def test_senseless_engine(kv_tokens: int, shared_tokens: int, batched_tokens: int, said: str) -> None:
    """What could never work is refused before anything runs."""
    with pytest.raises(SimulationRefused, match=said):
        spec(kv_tokens, shared_tokens=shared_tokens, max_num_batched_tokens=batched_tokens)


_REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 120),
        st.integers(1, 40),
        st.lists(st.integers(0, 3), max_size=8),
        st.floats(0, 20),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=25,
)


def _made(rows: list[tuple[int, int, list[int], float, int]]) -> list[Job]:
    """Equal id, equal prefix: so a block's id is made of all that stand before it."""
    now, made = 0.0, []
    for prompt, output, path, gap, priority in rows:
        now += gap
        names, blocks = 0, []
        for part in path[: -(-prompt // 16)]:
            names = names * 4 + part + 1
            blocks.append(names)
        made.append(job(prompt, output, tuple(blocks), at=now, priority=priority))
    return made


@settings(max_examples=examples(120), deadline=None)
@given(rows=_REQUESTS, kv_tokens=st.sampled_from([160, 256, 1_024]), ranked=st.booleans(), seqs=st.integers(1, 8))
def test_nothing_is_lost(
    rows: list[tuple[int, int, list[int], float, int]], kv_tokens: int, ranked: bool, seqs: int
) -> None:
    """Every request ends exactly once after its first token, tokens are conserved, the cache is never overfull, no more is
    found than asked for, and at the end nothing is held.
    """
    told = Told()
    engine = Engine(spec(kv_tokens, priority_scheduling=ranked, max_num_seqs=seqs), HAND, told)
    jobs = _made(rows)
    for each in jobs:
        engine.advance(each.arrived_at)
        engine.enqueue(each, each.arrived_at)
        stats = engine.stats(each.arrived_at)
        assert 0 <= (stats.kv_usage or 0.0) <= 1
        assert engine.kv.used + engine.kv.cached <= engine.kv.capacity
        assert stats.running <= seqs
    run(engine)
    for each in jobs:
        events = told.of(each)
        assert [what for _, what in events] == ["first_token", "done"]
        assert each.arrived_at < events[0][0] <= events[1][0]
        assert each.generated == each.output_tokens
        assert 0 <= each.cached_tokens < each.prompt_tokens
    assert [at for at, *_ in told.events] == sorted(at for at, *_ in told.events)
    assert engine.output_tokens == sum(each.output_tokens for each in jobs)
    assert engine.prompt_tokens == engine.prefix_queries == sum(each.prompt_tokens for each in jobs)
    assert engine.prefix_hits == sum(each.cached_tokens for each in jobs)
    if not engine.preemptions:
        assert engine.computed_tokens + engine.prefix_hits == engine.prompt_tokens
    assert engine.kv.used == 0
    assert engine.kv.cached <= engine.kv.capacity
