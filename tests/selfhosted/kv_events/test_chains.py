"""What engines tell of their tokens, and what the index then believes of our texts."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfhosted.balance.blocks import prompt_blocks
from selfhosted.balance.index import PrefixIndex
from selfhosted.kv_events.chains import ROOT, ChainLimits, Chains, name_of
from selfhosted.kv_events.events import read_batch
from tests.examples import examples
from tests.selfhosted.kv_events.engine import Cache, payload

BLOCK_BYTES = 8
BLOCK_TOKENS = 4


class Pool:
    """Engines, the index, and what lies between; tokens are spelt as bytes, each `width(token)` long."""

    def __init__(
        self, *, blocks: int = 32, replicas: Sequence[str] = ("a", "b"), is_even: bool = True, **limits: int
    ) -> None:
        self.index = PrefixIndex(10_000)
        self.chains = Chains(self.index, ChainLimits(**limits))
        self.caches = {name: Cache(blocks, BLOCK_TOKENS, seed=name.encode()) for name in replicas}
        self.chains.adopt(replicas)
        self.is_even = is_even
        self.prompts: list[list[int]] = []

    def text(self, tokens: Sequence[int]) -> bytes:
        return b"".join(b"%04d" % token if self.is_even else b"%d" % token * (1 + token % 7) for token in tokens)

    def texts(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return prompt_blocks(self.text(tokens), block_bytes=BLOCK_BYTES, most=1_000)

    def serve(self, replica: str, tokens: Sequence[int], *, is_told: bool = True) -> int:
        hit = self.caches[replica].serve(tokens)
        self.prompts.append(list(tokens))
        if is_told:
            self.told(replica)
        return hit

    def told(self, replica: str) -> None:
        """The events arrive."""
        for event in read_batch(payload(self.caches[replica].take())).events:
            self.chains.apply(replica, event)

    def learn(self, replica: str, tokens: Sequence[int]) -> int:
        texts = self.texts(tokens)
        a_byte = len(tokens) / max(1, len(self.text(tokens)))
        ends = [at * BLOCK_BYTES * a_byte for at in range(1, len(texts) + 1)]
        return self.chains.learn(replica, tokens, texts, ends)

    def check(self) -> None:
        """What the index holds is held by the engine, with everything before it."""
        for replica, cache in self.caches.items():
            there = self._names_there(cache)
            credited = self.chains.credited(replica)
            assert self.index.held(replica) == len(credited)
            for text in credited:
                name = self.chains._texts[text]
                while name != ROOT:
                    assert name in there
                    name = self.chains._nodes[name].parent
        assert self.chains.nodes >= (self.chains.mapped > 0)

    def _names_there(self, cache: Cache) -> set[int]:
        found: set[int] = set()
        for tokens in self.prompts:
            parent = ROOT
            for at, block_hash in enumerate(cache.hashes(tokens)):
                parent = name_of(parent, tuple(tokens[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS]), None, ())
                if block_hash in cache.held:
                    found.add(parent)
        return found


def numbers(count: int, start: int = 0) -> list[int]:
    return list(range(start, start + count))


def test_a_prompt_is_credited_and_taken_away() -> None:
    """What an engine stores is known once its tokens were asked for, and gone as soon as it is evicted."""
    pool = Pool(blocks=8)
    prompt = numbers(32)
    pool.serve("a", prompt)
    assert pool.index.held("a") == 0
    assert pool.learn("a", prompt) == 16
    assert pool.chains.credited("a") == set(pool.texts(prompt))
    assert pool.index.depths(pool.texts(prompt)) == {"a": 16}
    for start in (100, 200):
        pool.serve("a", numbers(16, start))
        pool.check()
    assert pool.index.held("a") == 0


def test_others_traffic_is_credited_too() -> None:
    """Another gateway's requests are told by the engine alone, and are known here by what was learned of another replica."""
    pool = Pool()
    prompt = numbers(64)
    pool.serve("a", prompt)
    pool.learn("a", prompt)
    assert pool.chains.credited("b") == set()
    pool.serve("b", prompt)
    assert pool.chains.credited("b") == pool.chains.credited("a") != set()
    pool.check()


@pytest.mark.parametrize("describes_itself", [False, True])
def test_what_a_cache_below_still_has_is_believed(*, describes_itself: bool) -> None:
    """A prompt that left the GPU is as good as there until the cache below loses it, too; what was there twice is not lost by that."""
    pool = Pool(blocks=8)
    prompt = numbers(32)
    pool.serve("a", prompt)
    pool.learn("a", prompt)
    cache = pool.caches["a"]
    hashes = cache.hashes(prompt)
    more = {"token_ids": prompt, "block_size": BLOCK_TOKENS} if describes_itself else {"token_ids": [], "block_size": 0}
    kept = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "medium": "CPU", **more}
    lost = {"type": "BlockRemoved", "block_hashes": hashes[2:], "medium": "CPU"}

    def tell(*events: Any) -> None:
        for event in read_batch(payload(list(events))).events:
            pool.chains.apply("a", event)

    tell(kept)
    for start in (100, 200):
        pool.serve("a", numbers(16, start))
    assert pool.chains.credited("a") == set(pool.texts(prompt))
    tell(lost)
    assert pool.chains.credited("a") == set(pool.texts(prompt)[:5])
    pool.serve("a", prompt)
    assert pool.chains.credited("a") == set(pool.texts(prompt))
    tell(lost, {**lost, "block_hashes": hashes})
    assert pool.chains.credited("a") == set(pool.texts(prompt))
    pool.check()


def test_blocks_that_only_the_cache_below_has_are_known_if_it_says_their_tokens() -> None:
    """As after a load from a disk; by hashes alone nobody knows what they are."""
    pool = Pool(blocks=32)
    prompt = numbers(32)
    pool.serve("a", prompt)
    pool.learn("a", prompt)
    hashes = pool.caches["b"].hashes(prompt)
    kept = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "medium": "CPU"}
    for more, credited in (
        ({"token_ids": [], "block_size": 0}, 0),
        ({"token_ids": prompt, "block_size": BLOCK_TOKENS}, 16),
    ):
        for event in read_batch(payload([kept | more])).events:
            pool.chains.apply("b", event)
        assert len(pool.chains.credited("b")) == credited
    for event in read_batch(payload([{"type": "BlockRemoved", "block_hashes": hashes, "medium": "CPU"}])).events:
        pool.chains.apply("b", event)
    assert pool.chains.credited("b") == set()


def test_an_evicted_end_keeps_the_beginning() -> None:
    """An engine evicts a prompt's end first: what is left is still believed."""
    pool = Pool(blocks=20)
    prompt = numbers(64)
    pool.serve("a", prompt)
    pool.learn("a", prompt)
    assert len(pool.chains.credited("a")) == 32
    pool.serve("a", numbers(40, 5_000))
    # Ten new blocks pushed six of sixteen out; two texts end in each, and in the first a third.
    assert pool.chains.credited("a") == set(pool.texts(prompt)[:21])
    pool.check()


def test_what_two_prompts_share_stays_when_one_goes() -> None:
    """Proportion puts the shared text's end too far at first; a second prompt that shares it shows where it is."""
    pool = Pool(blocks=1_000, is_even=False)
    shared = [7, 700, 70, 7_000] * 10
    one, other = [*shared, *numbers(60, 100)], [*shared, *numbers(60, 9_000)]
    for prompt in (one, other):
        pool.serve("a", prompt)
        pool.learn("a", prompt)
    common = len(pool.text(shared)) // BLOCK_BYTES
    before = pool.index.depths(pool.texts(other))
    # All that only the first has is evicted.
    cache = pool.caches["a"]
    gone = [each for each in cache.hashes(one) if each not in cache.hashes(other)]
    for each in reversed(gone):
        del cache.held[each]
        cache.tell("BlockRemoved", block_hashes=[each], medium="GPU", group_idx=0)
    pool.told("a")
    assert pool.index.depths(pool.texts(other)) == before
    credited = pool.chains.credited("a")
    assert sum(text in credited for text in pool.texts(one)[:common]) >= common - 2 * BLOCK_TOKENS
    pool.check()


def test_only_what_the_engine_said_is_mapped() -> None:
    """Tokens that are not what the engine computed, such as of another template, teach nothing."""
    pool = Pool()
    pool.serve("a", numbers(64))
    assert pool.chains.learn("a", numbers(64, 1), pool.texts(numbers(64)), [float(at) for at in range(32)]) == 0
    assert (pool.chains.mapped, pool.chains.nodes) == (0, 0)


def test_salts_and_adapters_are_apart() -> None:
    """The same tokens under another salt, or with an adapter, are other blocks."""
    pool = Pool()
    prompt = numbers(32)
    pool.caches["a"].serve(prompt, "acme")
    pool.told("a")
    texts, ends = pool.texts(prompt), [2.0 * at for at in range(1, 17)]
    assert pool.chains.learn("a", prompt, texts, ends) == 0
    assert pool.chains.learn("a", prompt, texts, ends, salt="rival") == 0
    assert pool.chains.learn("a", prompt, texts, ends, salt="acme", adapter="sql") == 0
    assert pool.chains.learn("a", prompt, texts, ends, salt="acme") > 0


def test_what_hangs_on_nothing_known() -> None:
    """Blocks whose beginning was stored before anybody listened are passed over."""
    pool = Pool()
    prompt = numbers(64)
    pool.caches["a"].serve(prompt[:32])
    pool.caches["a"].take()
    pool.serve("a", prompt)
    assert (pool.chains.held("a"), pool.learn("a", prompt)) == (0, 0)


def test_all_cleared_and_forgotten() -> None:
    """A cleared cache holds nothing, also of what was inferred; after a gap only what was told is dropped."""
    pool = Pool()
    prompt, inferred = numbers(64), (11, 12, 13)
    for act, left in ((pool.chains.cleared, 0), (pool.chains.forget, 3)):
        pool.serve("a", prompt)
        pool.learn("a", prompt)
        # A request of ours was there, and is over.
        pool.index.unpin("a", inferred, pool.index.pin("a", inferred))
        assert pool.chains.credited("a")
        act("a")
        assert (pool.index.held("a"), pool.chains.held("a")) == (left, 0)
        pool.caches["a"].held.clear()
    pool.caches["a"].clear()
    pool.told("a")
    assert pool.index.held("a") == 0


def test_who_left_and_who_is_unknown() -> None:
    """Events of who is no member are nothing, and what was known of one that left is gone."""
    pool = Pool()
    prompt = numbers(64)
    pool.serve("a", prompt)
    pool.learn("a", prompt)
    pool.chains.adopt(["b"])
    assert (pool.chains.held("a"), pool.chains.credited("a"), pool.index.held("a")) == (0, set(), 0)
    pool.serve("a", numbers(8, 500))
    assert pool.chains.held("a") == 0
    pool.chains.forget("nobody")
    pool.chains.cleared("nobody")


def test_the_beginning_is_let_go_last() -> None:
    """The index, when it is full, lets go a prompt's end before its beginning, as the engine does."""
    pool = Pool(replicas=["a"])
    prompt = numbers(64)
    pool.serve("a", prompt[:32])
    pool.learn("a", prompt[:32])
    pool.serve("a", prompt)
    pool.learn("a", prompt)
    pool.index.capacity("a", 10)
    assert pool.index.held("a") == 10
    assert all(text in pool.index._replicas["a"].blocks for text in pool.texts(prompt)[:10])


OPS = st.lists(
    st.tuples(
        st.sampled_from(["serve", "serve", "serve", "learn", "learn", "clear", "gap", "forget", "adopt"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 11),
        st.integers(1, 40),
    ),
    max_size=60,
)


def prompts(seed: int) -> list[list[int]]:
    """Prompts that share beginnings of different lengths, as conversations and system prompts do."""
    rng = random.Random(seed)
    found = [[rng.randrange(10_000) for _ in range(60)]]
    for _ in range(11):
        parent = rng.choice(found)
        found.append([*parent[: rng.randrange(len(parent))], *(rng.randrange(10_000) for _ in range(30))])
    return found


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 50), st.integers(2, 40), st.booleans(), st.booleans(), OPS)
def test_nothing_is_believed_that_is_not_there(
    seed: int, blocks: int, is_even: bool, is_tight: bool, ops: list[tuple[str, str, int, int]]
) -> None:
    """After any events, gaps and lessons, of each replica no more is believed than its engine holds."""
    limits = {"engine_blocks": 30, "nodes": 12, "texts": 9} if is_tight else {}
    pool = Pool(blocks=blocks, replicas=["a", "b", "c"], is_even=is_even, **limits)
    known = prompts(seed)
    for op, replica, which, length in ops:
        prompt = known[which][: 3 * length]
        act(pool, op, replica, prompt)
        pool.check()
        if is_even and not is_tight:
            check_hits(pool, prompt)
    assert len(pool.chains._texts) <= pool.chains._limits.texts
    assert pool.chains.nodes <= pool.chains._limits.nodes
    pool.chains.adopt([])
    assert pool.index.held("a") == pool.index.held("b") == 0


def act(pool: Pool, op: str, replica: str, prompt: list[int]) -> None:
    if op == "serve":
        pool.serve(replica, prompt)
    elif op == "learn":
        pool.learn(replica, prompt)
    elif op == "clear":
        pool.caches[replica].clear()
        pool.told(replica)
    elif op == "gap":
        pool.serve(replica, prompt, is_told=False)
        pool.caches[replica].take()
        pool.chains.forget(replica)
    elif op == "forget":
        pool.chains.cleared(replica)
    else:
        pool.chains.adopt([name for name in "abc" if name != replica])
        pool.check()
        pool.chains.adopt("abc")


def check_hits(pool: Pool, prompt: list[int]) -> None:
    """Where all tokens are equally long, what is believed is what the engine would find: whole blocks before the end."""
    for name, cache in pool.caches.items():
        hashes = cache.hashes(prompt)
        hit = next((at for at, each in enumerate(hashes) if each not in cache.held), len(hashes))
        credited = pool.chains.credited(name)
        for at, text in enumerate(pool.texts(prompt)):
            if text in credited:
                assert hit >= (at + 1) * 2 // BLOCK_TOKENS


@pytest.mark.parametrize("is_learned", [True, False])
def test_bounds(is_learned: bool) -> None:
    """A stream of prompts that never come twice leaves no more than the limits, and a prompt in use stays."""
    pool = Pool(blocks=400, replicas=["a"], engine_blocks=160, nodes=100, texts=60)
    rng = random.Random(2)
    hot = numbers(40)
    for _ in range(150):
        pool.serve("a", hot)
        if is_learned and not pool.chains.knows(pool.texts(hot)):
            pool.learn("a", hot)
        cold = [rng.randrange(10_000) for _ in range(40)]
        pool.serve("a", cold)
        if is_learned:
            pool.learn("a", cold)
        assert pool.chains.held("a") <= 160
        assert pool.chains.mapped <= 60
        assert pool.chains.nodes <= 100
        pool.prompts = pool.prompts[-20:]
    if is_learned:
        assert len(pool.chains.credited("a") & set(pool.texts(hot))) >= 15


def test_names_do_not_depend_on_the_replica() -> None:
    """A block's name is made of the tokens up to its end, and nothing else can have it."""
    names = {
        name_of(parent, tokens, adapter, extra)
        for parent in (ROOT, 5)
        for tokens in ((1, 2), (1, 2, 3), (1, 1 << 62))
        for adapter in (None, "", "x")
        for extra in ((), ("x",), (["x", 0],))
    }
    assert len(names) == 2 * 3 * 3 * 3
    assert msgspec.msgpack.encode(name_of(ROOT, (1,), None, ())) == msgspec.msgpack.encode(name_of(0, [1], None, []))
