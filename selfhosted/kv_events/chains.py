"""Maps the blocks that each replica's engine reports to the balancer's blocks of text.

An engine names its blocks by hashes of tokens, the balancer its own by hashes of text. Both are chains: a block stands
for the prompt up to its end. Each engine block gets a name here that depends on nothing but tokens (and the adapter,
the salt, images), so it is the same for all replicas of a pool. Some prompts are tokenized by their engine; of those it
is known where in the chain each block of text ends, by proportion. A text is *mapped* to the last engine block that
lies wholly before its end. Where two prompts share text but not that engine block, the text moves to the last one that
both have: so proportion is only a first guess, and eviction of one prompt's rest never takes what they share.

A mapped text is credited to a replica while its engine holds the block and every one before it, whichever gateway sent
the prompt; it is taken away as soon as one of them is removed from the GPU and from the caches below it, which an engine
loads from in far less time than it reads. What is not mapped stays as the balancer infers it.

Bounds: `engine_blocks` of a pool (about 250 bytes each), divided among the replicas; the oldest go first, as if they
had been removed, but those on the path to mapped text last. `nodes` of these paths (500 bytes each), and `texts`
mapped; the least recently used go first. What goes is not credited any more, so nothing is believed that would not be
taken away in time.
"""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

import msgspec

from selfhosted.balance.index import PrefixIndex
from selfhosted.kv_events.events import BlocksKept, BlocksRemoved, BlocksStored, Event, Tier

ROOT: Final = 0
_DIGEST_BYTES: Final = 8
_NAME_BYTES: Final = 8
_MOST_USED: Final = 4_096
_TRIMMED_PART: Final = 16
"""Fraction of the limit evicted at once: the search for the oldest takes longer the more went before."""


class ChainLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on what is remembered of one pool."""

    engine_blocks: int = 400_000
    nodes: int = 100_000
    texts: int = 50_000


class _Node:
    """An engine block on the path to mapped text."""

    __slots__ = ("children", "depth", "parent", "texts")

    def __init__(self, parent: int, depth: int) -> None:
        self.parent = parent
        self.depth = depth
        self.children: set[int] = set()
        self.texts: list[int] = []


class _ReplicaBlocks:
    """The blocks of one replica."""

    __slots__ = ("below", "block_tokens", "left", "names", "reached", "there")

    def __init__(self) -> None:
        self.names: dict[int, int] = {}
        """Engine block hash → name here."""
        self.below: set[int] = set()
        """Hashes of those that a cache below the GPU's has, too;"""
        self.left: set[int] = set()
        """and of these, the ones that are no longer in the GPU's."""
        self.there: set[int] = set()
        self.reached: set[int] = set()
        """Nodes that the engine holds together with all before them."""
        self.block_tokens = 0


class Chains:
    """The engine blocks of one pool and their mapping to text. In memory only: microseconds for a block, and no
    waiting.
    """

    def __init__(self, index: PrefixIndex, limits: ChainLimits = ChainLimits()) -> None:  # noqa: B008 - frozen
        self._index = index
        self._limits = limits
        self._replicas: dict[str, _ReplicaBlocks] = {}
        self._nodes: dict[int, _Node] = {}
        self._texts: OrderedDict[int, int] = OrderedDict()
        """Mapped text → node, least recently used first; of one prompt the end comes before the beginning."""
        self._used: dict[int, None] = {}
        """Texts of prompts seen again since the last eviction."""

    @property
    def mapped(self) -> int:
        return len(self._texts)

    @property
    def nodes(self) -> int:
        return len(self._nodes)

    def held(self, replica: str) -> int:
        """Return the number of engine blocks known to be cached there."""
        found = self._replicas.get(replica)
        return len(found.names) if found else 0

    def credited(self, replica: str) -> set[int]:
        """Return the mapped texts that the engine holds."""
        found = self._replicas.get(replica)
        return {text for name in found.reached for text in self._nodes[name].texts} if found else set()

    def knows(self, texts: Sequence[int]) -> bool:
        """Return whether all but the last few texts are mapped, so that this prompt would teach nothing."""
        for text in texts[-2:]:
            if text in self._texts:
                if len(self._used) < _MOST_USED:
                    self._used[text] = None
                return True
        return not texts

    def adopt(self, replicas: Collection[str]) -> None:
        """Replace the pool's members."""
        for gone in self._replicas.keys() - set(replicas):
            self.forget(gone)
            del self._replicas[gone]
        for name in replicas:
            self._replicas.setdefault(name, _ReplicaBlocks())
        for name in replicas:
            self._trim(name, 0)

    def apply(self, replica: str, event: Event) -> None:
        """Apply an event of the replica's engine."""
        held = self._replicas.get(replica)
        if held is None:
            return
        if isinstance(event, BlocksStored):
            self._store(replica, held, event)
        elif isinstance(event, BlocksKept):
            held.below.update(each for each in event.hashes if each in held.names)
        elif isinstance(event, BlocksRemoved):
            gone = [each for each in event.hashes if _is_gone(held, each, event.tier)]
            self._remove_blocks(
                replica, held, [name for each in gone if (name := held.names.pop(each, None)) is not None]
            )
        else:
            self.cleared(replica)

    def cleared(self, replica: str) -> None:
        """Handle an empty cache: drop the known blocks and the inferred ones."""
        held = self._replicas.get(replica)
        if held is not None:
            self._empty(held)
        self._index.clear(replica)

    def forget(self, replica: str) -> None:
        """Drop the blocks that the engine reported, after something was missed. The inferred ones stay."""
        held = self._replicas.get(replica)
        if held is not None:
            self._index.remove(replica, self.credited(replica))
            self._empty(held)

    def learn(
        self,
        replica: str,
        tokens: Sequence[int],
        texts: Sequence[int],
        ends: Sequence[float],
        *,
        adapter: str | None = None,
        salt: str | None = None,
    ) -> int:
        """Map a prompt that this replica has just served. `ends` are the approximate numbers of tokens up to the end
        of each text block. Maps only to engine blocks that the engine reported. Returns how many texts were mapped.
        """
        held = self._replicas.get(replica)
        if held is None or not held.block_tokens:
            return 0
        chain = self._held_chain(held, tokens, adapter, salt)
        mapped: list[int] = []
        deepest = 0
        for text, end in zip(texts, ends, strict=False):
            # A text that ends before the first block does belongs to it all the same: without it nothing would match.
            depth = max(1, int(end) // held.block_tokens)
            if depth > len(chain):
                break
            depth = max(depth, deepest)
            deepest = max(deepest, self._map(text, chain, depth))
            mapped.append(text)
        self._touch(mapped)
        for name, other in self._replicas.items():
            self._credit(name, other, chain[:deepest], mapped)
        self._evict()
        return len(mapped)

    def _store(self, replica: str, held: _ReplicaBlocks, event: BlocksStored) -> None:
        parent = ROOT if event.parent is None else held.names.get(event.parent)
        if parent is None or not event.tokens:
            # Its parent was stored before the subscription began, so its prompt is unknown.
            return
        if event.parent is None:
            held.block_tokens = len(event.tokens[0])
        self._trim(replica, len(event.hashes))
        reached: list[int] = []
        for block_hash, tokens, extra in zip(event.hashes, event.tokens, event.extras, strict=True):
            name = name_of(parent, tokens, event.adapter, extra)
            if event.tier == "gpu":
                held.left.discard(block_hash)
            else:
                held.below.add(block_hash)
                if block_hash not in held.names:
                    held.left.add(block_hash)
            # Re-inserted, so that the dict stays in order of the last event.
            held.names.pop(block_hash, None)
            held.names[block_hash] = name
            held.there.add(name)
            if name in self._nodes and (parent == ROOT or parent in held.reached):
                reached += self._reach(held, name)
            parent = name
        self._store_reached(replica, reached)

    def _reach(self, held: _ReplicaBlocks, name: int) -> list[int]:
        """Return the node and its descendants that are now reached, in the chain's order."""
        found: list[int] = []
        todo = [name]
        while todo:
            each = todo.pop()
            if each in held.there and each not in held.reached:
                held.reached.add(each)
                found.append(each)
                todo += self._nodes[each].children
        return found

    def _remove_blocks(self, replica: str, held: _ReplicaBlocks, names: Iterable[int]) -> None:
        gone: list[int] = []
        for name in names:
            held.there.discard(name)
            node = self._nodes.get(name)
            if node is None:
                continue
            gone += node.texts
            todo = [name]
            while todo:
                each = todo.pop()
                if each in held.reached:
                    held.reached.discard(each)
                    gone += self._nodes[each].texts
                    todo += self._nodes[each].children
        if gone:
            self._index.remove(replica, gone)

    def _store_reached(self, replica: str, reached: Sequence[int]) -> None:
        """Store reached texts in the index, always from the prompt's beginning: otherwise it would evict the beginning
        first.
        """
        heard: set[int] = set()
        for name in reversed(reached):
            texts: list[int] = []
            while name != ROOT and name not in heard:
                heard.add(name)
                node = self._nodes[name]
                texts += reversed(node.texts)
                name = node.parent  # noqa: PLW2901 - up the chain
            texts.reverse()
            if texts:
                self._index.store(replica, texts)

    def _held_chain(
        self, held: _ReplicaBlocks, tokens: Sequence[int], adapter: str | None, salt: str | None
    ) -> list[int]:
        """Return the names of the prompt's leading engine blocks, as far as the engine holds them."""
        chain: list[int] = []
        parent = ROOT
        size = held.block_tokens
        for start in range(0, len(tokens) - size + 1, size):
            extra = (salt,) if salt and not start else ()
            name = name_of(parent, tuple(tokens[start : start + size]), adapter, extra)
            if name not in held.there:
                break
            chain.append(name)
            parent = name
        return chain

    def _map(self, text: int, chain: Sequence[int], depth: int) -> int:
        """Map the text to the chain's block of this depth, or to an earlier one where it was mapped differently
        before. Returns the depth.
        """
        before = self._texts.get(text)
        if before is not None:
            # Two that part within their first block cannot both have the text; the newer one has it.
            depth = max(1, min(depth, self._nodes[before].depth, self._common_depth(before, chain)))
            if chain[depth - 1] == before:
                return depth
            self._unmap(text)
        parent = ROOT
        for at, name in enumerate(chain[:depth], start=1):
            if name not in self._nodes:
                self._nodes[name] = _Node(parent, at)
                if parent != ROOT:
                    self._nodes[parent].children.add(name)
            parent = name
        self._nodes[parent].texts.append(text)
        self._texts[text] = parent
        return depth

    def _common_depth(self, name: int, chain: Sequence[int]) -> int:
        """Return the number of the chain's blocks on the path to this node."""
        while name != ROOT:
            node = self._nodes[name]
            if node.depth <= len(chain) and chain[node.depth - 1] == name:
                return node.depth
            name = node.parent
        return 0

    def _unmap(self, text: int) -> None:
        name = self._texts.pop(text)
        self._nodes[name].texts.remove(text)
        for replica, held in self._replicas.items():
            if name in held.reached:
                self._index.remove(replica, (text,))
        self._prune(name)

    def _prune(self, name: int) -> None:
        """Remove a node without texts or children, and then those before it that led only to it."""
        while name != ROOT:
            node = self._nodes[name]
            if node.texts or node.children:
                return
            del self._nodes[name]
            for held in self._replicas.values():
                held.reached.discard(name)
            if node.parent != ROOT:
                self._nodes[node.parent].children.discard(name)
            name = node.parent

    def _touch(self, texts: Sequence[int]) -> None:
        for text in reversed(texts):
            self._texts.move_to_end(text)

    def _credit(self, replica: str, held: _ReplicaBlocks, chain: Sequence[int], texts: Sequence[int]) -> None:
        for name in chain:
            if name not in held.there:
                break
            held.reached.add(name)
        mine = [text for text in texts if self._texts[text] in held.reached]
        if mine:
            self._index.store(replica, mine)

    def _evict(self) -> None:
        if len(self._texts) <= self._limits.texts and len(self._nodes) <= self._limits.nodes:
            return
        for text in self._used:
            if text in self._texts:
                self._touch(self._texts_on_path(self._texts[text]))
        self._used = {}
        while len(self._texts) > self._limits.texts or len(self._nodes) > self._limits.nodes:
            self._unmap(next(iter(self._texts)))

    def _texts_on_path(self, name: int) -> list[int]:
        """Return the texts on the path to this node, in the prompt's order."""
        texts: list[int] = []
        while name != ROOT:
            node = self._nodes[name]
            texts += reversed(node.texts)
            name = node.parent
        texts.reverse()
        return texts

    def _trim(self, replica: str, more: int) -> None:
        held = self._replicas[replica]
        limit = max(1, self._limits.engine_blocks // max(1, len(self._replicas)))
        if len(held.names) + more <= limit:
            return
        some = max(len(held.names) + more - limit, limit // _TRIMMED_PART)
        kept: dict[int, int] = {}
        gone: list[int] = []
        for block_hash, name in list(islice(held.names.items(), some)):
            del held.names[block_hash]
            if name in held.reached:
                kept[block_hash] = name
            else:
                gone.append(name)
        held.names |= kept
        excess = min(len(held.names), len(held.names) + more - limit)
        oldest = list(islice(held.names, max(0, excess)))
        gone += [held.names.pop(block_hash) for block_hash in oldest]
        held.below.intersection_update(held.names)
        held.left.intersection_update(held.names)
        self._remove_blocks(replica, held, gone)

    @staticmethod
    def _empty(held: _ReplicaBlocks) -> None:
        held.names, held.there, held.reached = {}, set(), set()
        held.below, held.left = set(), set()


def _is_gone(held: _ReplicaBlocks, block_hash: int, tier: Tier) -> bool:
    """Note that a cache lost a block; return True where no cache of the replica has it any more."""
    if tier == "below":
        held.below.discard(block_hash)
        if block_hash not in held.left:
            return False
        held.left.discard(block_hash)
        return True
    if block_hash in held.below:
        held.left.add(block_hash)
        return False
    return True


def name_of(parent: int, tokens: Sequence[int], adapter: str | None, extra: Sequence[Any]) -> int:
    """Return the 64-bit name of an engine block: a hash of the prompt up to its end, the same for all replicas of a
    pool. Never 0.
    """
    digest = blake2b(array("q", tokens).tobytes(), key=parent.to_bytes(_NAME_BYTES, "big"), digest_size=_DIGEST_BYTES)
    if adapter is not None or extra:
        digest.update(msgspec.msgpack.encode((adapter, extra)))
    return int.from_bytes(digest.digest(), "big") or 1
