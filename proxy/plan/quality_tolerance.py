"""Tolerances: converts a quality floor into the price that planning may pay for one more adequate answer.

A floor of 0.95 says: of the quality that is to be had for the reference's cost, keep 95 %. The willingness to pay is
the same for one prompt (`classifier/frontier.py`). The curve between them is computed over a sample of classified
prompts, either the one that the trained model brings along or, once there are enough, the team's own requests.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.frontier import (
    Choices,
    Columns,
    Floats,
    Point,
    attainable,
    bounded_choice,
    most_lost,
    point_of,
    willingness_for,
)
from classifier.moves import Choice, Move, moves
from classifier.pairs import choose_pairs
from classifier.prediction import Classifier, Prompt
from cost.prices import Price
from providers.catalog import Catalog
from providers.target import Target
from proxy.plan.evidence import Evidence
from proxy.plan.marginal_cost import RESTING_PARTS
from proxy.plan.route_plan import (
    NO_LIMIT_NANOUSD,
    OwnPool,
    Policy,
    choosable,
    evidence_for_auto,
    is_own,
    reference_targets,
)

Key = TypeVar("Key")
Value = TypeVar("Value")

MAX_CACHED: Final = 512
MAX_GROUNDS: Final = 8
"""The most cached choice tables."""
MAX_CELLS: Final = 1_200_000
"""The most prompts times targets in them together, but for the latest: some 70 bytes each. Three hundred models have half of it."""
FLOORS: Final = (0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0)


class Willingness(NamedTuple):
    """The most that one more adequate answer may cost, in nano-dollars: where average prices are compared, and where
    margins are. Either keeps the floor by itself, since our own GPUs get more prompts while they have room, and
    theirs may be the weaker model.
    """

    by_average: float
    with_room: float
    most_lost: float = 1.0
    """The most that one prompt may be expected to lose against the reference, as a difference of chances."""


RequestedFloor = tuple[float, frozenset[str] | None, str]
"""A request for a willingness: the floor, the allowed models, and the team."""
Basis = Literal["sample", "own", "none"]
"""The basis of a curve: the trained model's sample, a team's own requests, or nothing."""

# Long enough that a target's habit of long answers shows through the rounding to whole tokens.
_PROBE: Final = Prompt(text="Write about 1000 words on how bridges carry their loads.")
_TOKENS_PER_PRICE: Final = 1_000_000
PREVIEWED_REQUESTS: Final = 1_000
"""The number of requests that a preview's money is for."""


class Sample(Protocol):
    """Classified prompts, one row each."""

    @property
    def vectors(self) -> NDArray[np.float32]: ...
    @property
    def input_tokens(self) -> NDArray[np.integer]: ...
    @property
    def output_tokens(self) -> NDArray[np.integer]: ...
    @property
    def weights(self) -> NDArray[np.floating]: ...


@runtime_checkable
class MeasuredClassifier(Classifier, Protocol):
    """A trained classifier, which predicts P(adequate) per target; the heuristic one does not."""

    def sample(self) -> Sample | None:
        """Prompts that it was not trained on, or None."""

    def adequacies(self, vectors: NDArray[np.float32], target_ids: Sequence[str]) -> NDArray[np.floating]:
        """Return P(adequate) of these targets' answers, as an array of shape (prompts, targets)."""


class TwoFirst(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a minimum where two cheap targets are asked first (`escalation: agreement`), for requests whose
    answers can be compared. Shares and money are by the worse assumption, that two wrong answers never say the same.
    Money is for 1,000 requests.
    """

    asked: float
    """The share of requests that two are asked for."""
    again: float
    """The share that the better target is asked for after them."""
    cost_nanousd: int
    kept_low: float
    """The quality kept where two wrong answers always say the same, and the better target is right about each of
    them.
    """
    kept_high: float
    """The quality kept where they never do, and models are right independently of each other."""
    ways: tuple[tuple[str, str, str, str, float, float], ...] = ()
    """Rows of (first target, second target, better target, target asked at once otherwise, share `asked`, share
    `again`).
    """

    def added_s(self, answer_s: Mapping[str, float]) -> float | None:
        """Return the mean seconds that an answer comes later, by the seconds that each target takes for one; None
        where a target's are not known.
        """
        added = 0.0
        for first, second, better, planned, asked, again in self.ways:
            if not {first, second, better, planned} <= answer_s.keys():
                return None
            added += asked * (max(answer_s[first], answer_s[second]) - answer_s[planned]) + again * answer_s[better]
        return added


class FloorResult(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted effect of one floor. Money is for 1,000 requests."""

    floor: float
    willing_nanousd: float
    """The most that one more adequate answer may cost."""
    reached: bool
    """False when no choice keeps so much quality; the figures are then the best there is."""
    kept: float
    """Quality as a share of the reference's; above 1 where the targets together are better."""
    kept_error: float
    """The standard error of `kept` due to the sample's size."""
    cost_nanousd: int
    """The cost as it is booked: our own GPUs at their average price."""
    margin_nanousd: int
    """The cost that the requests add to the running one, while our own pools have room."""
    full_willing_nanousd: float
    full_nanousd: int
    """The willingness and the cost where our own pools have no room, or are compared by their average price."""
    saving: float | None
    """The share of the all-reference cost that is saved, as booked; None when the reference has no price."""
    shares: dict[str, float]
    own_share: float
    """The share of requests that our own GPUs get while they have room."""
    replica_s: dict[str, float]
    """Seconds that all the requests, 1,000 for `auto`, keep one replica of each of our own pools busy."""
    current: bool
    moves: dict[str, Move] = {}
    """The new destinations of the requests that each target has under the present policy, by which bills change."""
    two: TwoFirst | None = None
    """The same minimum with two cheap targets first; None where there is no target to ask where they differ."""


class Present(NamedTuple):
    """The policy that a team's bill is from: its own quality floor, and the models that it may use."""

    floor: float | None
    allowed: frozenset[str] | None


class PoolSize(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of one of our own pools."""

    name: str
    replicas: int
    live: bool
    """True for those that take requests now, False for those that are planned."""
    by_margin: bool

    def carries_per_s(self, replica_s: float) -> float | None:
        """Return the requests for `auto` a second that keep it wholly busy, from the seconds of 1,000; None when it
        gets none.
        """
        return PREVIEWED_REQUESTS * self.replicas / replica_s if replica_s > 0 else None


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """Floors side by side. Without a curve `offers` is empty, and each prompt goes to the most capable target."""

    basis: Basis
    requests: int
    reference: tuple[str, ...]
    """The target that others are compared with; several where the best of them is taken."""
    reference_cost_nanousd: int | None
    unmeasured: tuple[str, ...]
    """Targets that `auto` may choose and that have no row; no figure here includes them."""
    current_floor: float
    current_willing_nanousd: float
    offers: tuple[FloorResult, ...]
    pools: tuple[PoolSize, ...] = ()
    """Our own pools that serve the targets of these figures."""
    own: frozenset[str] = frozenset()
    """The targets on our own GPUs."""
    evidence: dict[str, Evidence] = {}
    """The evidence of the quality of each target that `auto` may choose, by target id."""
    trained: bool = False
    """True where a trained classifier predicts."""


class _ChoiceTable(msgspec.Struct, frozen=True, kw_only=True):
    """A sample with the adequacy and cost of every target that could be chosen."""

    choices: Choices
    """The choices in the order of margins, with room."""
    by_average: Choices
    """The choices in the order of average prices; the same where no pool is compared by its margin."""
    columns: tuple[str, ...]
    reference: tuple[str, ...]
    reference_cost: float | None
    own: frozenset[str]
    """The columns on our own GPUs."""
    pool_of: dict[str, str]
    """The pool of each column that one serves."""
    taken: NDArray[np.bool_]
    """The prompts of the sample that fit somewhere, and that these choices are for."""
    whole: float
    """The quality that a floor of 1 asks for, with room or without."""

    def willingness(self, floor: float, *, full: bool = False) -> float:
        """Return the willingness of a floor; with `full`, where our own pools have no room."""
        return willingness_for(self.by_average if full else self.choices, floor, self.whole).willingness

    def for_floor(self, floor: float, *, full: bool = False) -> tuple[Point, Choice]:
        """Return the point of a floor and the choice there."""
        choices = self.by_average if full else self.choices
        willingness = self.willingness(floor, full=full)
        chosen = bounded_choice(choices, floor, willingness)
        choice = Choice(
            names=self.columns,
            chosen=chosen,
            cost=choices.cost,
            compared=choices.compared,
            weights=choices.weights,
            taken=self.taken,
        )
        return point_of(choices, chosen, willingness), choice


class Tolerances:
    """The willingness for each floor under one configuration; a reload or a new tuning makes a new instance."""

    def __init__(self, *, catalog: Catalog, policy: Policy, classifier: Classifier) -> None:
        self._catalog = catalog
        self._policy = policy
        self._classifier = classifier
        self._measured = classifier if isinstance(classifier, MeasuredClassifier) else None
        self._sample = None if self._measured is None else self._measured.sample()
        # The outlooks of any prompt show the targets that have one, and the lengths of their answers.
        probe = classifier.classify(_PROBE)
        self._lengths = {
            name: outlook.output_tokens / max(1, probe.expected_output_tokens)
            for name, outlook in probe.outlooks.items()
        }
        self.artifact = probe.artifact
        self._means: Mapping[str, float] | None = None
        self._known: OrderedDict[tuple[float, frozenset[str] | None], Willingness] = OrderedDict()
        self._requested: OrderedDict[RequestedFloor, Willingness] = OrderedDict()
        """The willingness given to each team's request, from the sample or from its own requests."""
        self._tables: OrderedDict[tuple[frozenset[str] | None, frozenset[str]], _ChoiceTable | None] = OrderedDict()
        # Previews are computed in threads.
        self._tables_lock = threading.Lock()
        # The one that most requests will ask for, so that none of them has to wait for it.
        self.of(None, None)

    def renewed(self) -> "Tolerances":
        """Return a fresh instance, for when the classifier was tuned and cached values are outdated."""
        return Tolerances(catalog=self._catalog, policy=self._policy, classifier=self._classifier)

    @property
    def width(self) -> int:
        """The length of a sample vector; 0 without a sample."""
        return 0 if self._sample is None else int(self._sample.vectors.shape[1])

    def mean_adequacies(self) -> Mapping[str, float]:
        """Return the mean chance of a good answer over the sample, by measured target; empty without a sample. Takes
        milliseconds a target the first time.
        """
        if self._means is None:
            measured, sample = self._measured, self._sample
            names = () if measured is None else tuple(name for name in self._lengths if name in self._catalog.targets)
            if measured is None or sample is None or not names:
                self._means = {}
            else:
                chances = np.asarray(measured.adequacies(sample.vectors, names), dtype=np.float64)
                means = np.average(chances, axis=0, weights=np.asarray(sample.weights, dtype=np.float64))
                self._means = dict(zip(names, map(float, means), strict=True))
        return self._means

    @property
    def teams(self) -> tuple[str, ...]:
        """The teams that asked recently, latest first."""
        return tuple(dict.fromkeys(team_id for _, _, team_id in reversed(self._requested) if team_id))

    def of(self, floor: float | None, allowed: frozenset[str] | None, team_id: str = "") -> Willingness:
        """Return the willingness to pay that keeps `floor` of the quality attainable among the allowed targets. Takes
        milliseconds the first time, then a look-up. A floor of None takes the gateway's.
        """
        key = (self._policy.quality_floor if floor is None else floor, allowed, team_id)
        found = self._requested.get(key)
        if found is not None:
            self._requested.move_to_end(key)
            return found
        found = self._of_sample(key)
        _remember(self._requested, key, found)
        return found

    def of_own(self, team_id: str, own: Sample | None) -> dict[RequestedFloor, Willingness | None]:
        """Compute the willingness from the team's own requests for each floor it asked for. Pure; some milliseconds
        each.
        """
        asked = [each for each in tuple(self._requested) if each[2] == team_id]
        if own is None:
            return dict.fromkeys(asked)
        return {each: _willingness(self._choice_table(own, each[1]), each[0]) for each in asked}

    def adopt(self, own: Mapping[RequestedFloor, Willingness | None]) -> None:
        """Adopt the willingness from own requests; None returns to the sample's."""
        for key, found in own.items():
            if key in self._requested:
                self._requested[key] = self._of_sample(key) if found is None else found

    def _of_sample(self, asked: RequestedFloor) -> Willingness:
        floor, allowed, _ = asked
        found = self._known.get((floor, allowed))
        if found is None:
            found = _willingness(self._cached_table(allowed), floor)
        _remember(self._known, (floor, allowed), found)
        return found

    def preview(
        self,
        floors: Sequence[float],
        allowed: frozenset[str] | None,
        *,
        current: float | None = None,
        own: Sample | None = None,
        up: Mapping[str, int] | None = None,
        present: Present | None = None,
        moved: Collection[str] | None = None,
        two_at_all: bool = True,
    ) -> Preview:
        """Compute the effect of each floor. `current` is the team's floor, `own` its own requests where known, `up`
        the replicas by pool that take requests, where they are watched, `present` the policy that holds today where
        another one is previewed. `moved` names the targets whose moves are asked for, where that is not all of them;
        without `two_at_all` the effect of two targets first is computed for the current floor alone.
        """
        floor = self._policy.quality_floor if current is None else current
        sample = own if own is not None else self._sample
        empty = frozenset(pool.name for pool in self._policy.pools if not (up or {}).get(pool.name, pool.replicas))
        ground = self._table_of(own, allowed, empty)
        if sample is None or ground is None:
            return self._plain_preview(floor, allowed)
        points = {each: ground.for_floor(each) for each in sorted({*floors, floor})}
        now = points[floor][1]
        if present is not None and present != Present(current, allowed):
            now = self._chosen_now(own, present, empty) or now
        return Preview(
            basis="sample" if own is None else "own",
            requests=len(sample.weights),
            reference=ground.reference,
            reference_cost_nanousd=None
            if ground.reference_cost is None
            else round(ground.reference_cost * PREVIEWED_REQUESTS),
            unmeasured=self._unmeasured(allowed),
            evidence=evidence_for_auto(self._policy, self._catalog, allowed),
            trained=True,
            current_floor=floor,
            current_willing_nanousd=points[floor][0].willingness,
            offers=tuple(
                _floor_result(
                    each,
                    here,
                    here if ground.choices is ground.by_average else ground.for_floor(each, full=True),
                    ground,
                    moved_from=(now, moved),
                    current=each == floor,
                    two=two_at_all or each == floor,
                )
                for each, here in points.items()
            ),
            pools=self._sizes(frozenset(ground.pool_of.values()), up or {}),
            own=ground.own,
        )

    def _table_of(
        self, own: Sample | None, allowed: frozenset[str] | None, empty: frozenset[str]
    ) -> _ChoiceTable | None:
        return self._cached_table(allowed, empty) if own is None else self._choice_table(own, allowed, empty)

    def _chosen_now(self, own: Sample | None, present: Present, empty: frozenset[str]) -> Choice | None:
        ground = self._table_of(own, present.allowed, empty)
        if ground is None:
            return None
        floor = self._policy.quality_floor if present.floor is None else present.floor
        return ground.for_floor(floor)[1]

    def _sizes(self, names: frozenset[str], up: Mapping[str, int]) -> tuple[PoolSize, ...]:
        return tuple(
            PoolSize(
                name=pool.name,
                replicas=up.get(pool.name, pool.replicas),
                live=pool.name in up,
                by_margin=pool.by_margin,
            )
            for pool in self._policy.pools
            if pool.name in names
        )

    def _plain_preview(self, floor: float, allowed: frozenset[str] | None) -> Preview:
        return Preview(
            basis="none",
            requests=0,
            reference=(),
            reference_cost_nanousd=None,
            unmeasured=self._unmeasured(allowed),
            evidence=evidence_for_auto(self._policy, self._catalog, allowed),
            trained=self._measured is not None,
            current_floor=floor,
            current_willing_nanousd=NO_CURVE.by_average,
            offers=(),
        )

    def _unmeasured(self, allowed: frozenset[str] | None) -> tuple[str, ...]:
        pool = choosable(self._policy, self._catalog, allowed)
        return tuple(target.target_id for target in pool if target.target_id not in self._lengths)

    def _cached_table(self, allowed: frozenset[str] | None, empty: frozenset[str] = frozenset()) -> _ChoiceTable | None:
        """Return the sample's choice table for these models, cached as it is the same for every floor."""
        key = (allowed, empty)
        with self._tables_lock:
            if key in self._tables:
                return self._tables[key]
        found = self._choice_table(self._sample, allowed, empty)
        with self._tables_lock:
            _remember(self._tables, key, found, most=MAX_GROUNDS)
            while len(self._tables) > 1 and sum(map(_cells, self._tables.values())) > MAX_CELLS:
                self._tables.popitem(last=False)
        return found

    def _choice_table(
        self, sample: Sample | None, allowed: frozenset[str] | None, empty: frozenset[str] = frozenset()
    ) -> _ChoiceTable | None:
        """Build a choice table; None without a sample, without a reference, or from values that are not finite.
        `empty` names pools without replicas, which are compared by their average price.
        """
        reference = reference_targets(self._lengths, self._policy, self._catalog, allowed)
        targets = [
            target
            for target in choosable(self._policy, self._catalog, allowed)
            if target.target_id in self._lengths and target.price is not None
        ]
        if self._measured is None or sample is None or not reference or not targets:
            return None
        # Of equally cheap ones planning takes the first id, and so does the curve.
        targets.sort(key=lambda target: target.target_id)
        columns = tuple(target.target_id for target in targets)
        found = np.asarray(self._measured.adequacies(sample.vectors, (*columns, *reference)), dtype=np.float64)
        adequate = np.where(_fits(targets, sample), found[:, : len(columns)], -np.inf)
        # A prompt that fits nowhere would be refused, and says nothing of any floor.
        takable = np.asarray(np.isfinite(adequate).any(axis=1))
        if not takable.any() or not np.isfinite(found).all():
            return None
        cost = np.column_stack([self._cost(target, target.price, sample) for target in targets if target.price])[
            takable
        ]
        weight = np.array([target.routing_weight for target in targets])
        pools = {target_id: pool for pool in self._policy.pools for target_id in pool.targets if target_id in columns}
        by_average = Choices(
            adequate=adequate[takable],
            cost=cost,
            reference=found[takable, len(columns) :].max(axis=1),
            reference_cost=self._reference_cost(reference, sample, takable),
            weights=np.asarray(sample.weights, dtype=np.float64)[takable],
            rank=cost / weight,
            work=np.column_stack([self._work(each, pools.get(each.target_id), sample) for each in targets])[takable],
        )
        rests = [name in pools and pools[name].by_margin and pools[name].name not in empty for name in columns]
        choices = by_average
        if any(rests):
            margin = np.where(rests, np.floor(cost / RESTING_PARTS), cost)
            choices = msgspec.structs.replace(by_average, margin=margin, rank=margin / weight)
        return _ChoiceTable(
            choices=choices,
            by_average=by_average,
            columns=columns,
            reference=reference,
            reference_cost=by_average.reference_cost,
            own=frozenset(target.target_id for target in targets if is_own(target, self._policy.pooled)),
            pool_of={name: pool.name for name, pool in pools.items()},
            taken=takable,
            whole=attainable(by_average),
        )

    def _reference_cost(self, reference: tuple[str, ...], sample: Sample, rows: NDArray[np.bool_]) -> float | None:
        target = self._catalog.targets.get(reference[0]) if len(reference) == 1 else None
        if target is None or target.price is None:
            return None
        weights = np.asarray(sample.weights, dtype=np.float64)[rows]
        return float(self._cost(target, target.price, sample)[rows] @ weights / weights.sum())

    def _cost(self, target: Target, price: Price, sample: Sample) -> Floats:
        """Return the cost of each prompt in nano-dollars, shape (prompts,), rounded as a booking is; floats, as it is
        a statistic.
        """
        output = self._output_tokens(target, sample)
        total = np.asarray(sample.input_tokens, dtype=np.float64) * price.input_nanousd + output * price.output_nanousd
        return np.asarray(np.floor(total / _TOKENS_PER_PRICE + 0.5))

    def _work(self, target: Target, pool: OwnPool | None, sample: Sample) -> Floats:
        """Return the seconds that each prompt keeps one replica of its pool busy, shape (prompts,); 0 where no pool
        of ours serves the target.
        """
        if pool is None:
            return np.zeros(len(sample.weights))
        read = np.asarray(sample.input_tokens, dtype=np.float64) * pool.input_s
        return np.asarray((read + self._output_tokens(target, sample) * pool.output_s) / _TOKENS_PER_PRICE)

    def _output_tokens(self, target: Target, sample: Sample) -> Floats:
        length = self._lengths.get(target.target_id, 1.0)
        return np.asarray(np.minimum(np.rint(np.asarray(sample.output_tokens) * length), target.max_output_tokens))


async def learn_from_own_requests(
    tolerances: Tolerances, read: Callable[[str], Awaitable[Sample | None]], pause_s: float = 0.05
) -> None:
    """Compute and adopt the willingness from the own requests of teams that asked recently; `read` fetches a team's."""
    for team_id in tolerances.teams:
        own = await read(team_id)
        tolerances.adopt(await asyncio.to_thread(tolerances.of_own, team_id, own))
        await asyncio.sleep(pause_s)


def _willingness(ground: _ChoiceTable | None, floor: float) -> Willingness:
    if ground is None:
        return without_curve(floor)
    by_average = ground.willingness(floor, full=True)
    if ground.choices is ground.by_average:
        return Willingness(by_average, by_average, most_lost(floor))
    return Willingness(by_average, ground.willingness(floor), most_lost(floor))


def _cells(table: _ChoiceTable | None) -> int:
    return 0 if table is None else table.choices.adequate.size


def _remember(cache: OrderedDict[Key, Value], key: Key, value: Value, *, most: int = MAX_CACHED) -> None:
    """Store a value as the latest, and evict the oldest beyond `most`."""
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > most:
        cache.popitem(last=False)


NO_CURVE: Final = Willingness(NO_LIMIT_NANOUSD, NO_LIMIT_NANOUSD)
"""The willingness without a curve: no limit, so quality comes first."""


def without_curve(floor: float) -> Willingness:
    """Return that willingness, with what one prompt may lose at a floor: chances that differ are no equals at 1."""
    return NO_CURVE._replace(most_lost=most_lost(floor))


def _fits(targets: Sequence[Target], sample: Sample) -> NDArray[np.bool_]:
    room = np.array([target.max_context_tokens for target in targets])
    return np.asarray(np.asarray(sample.input_tokens)[:, None] < room)


def _floor_result(
    floor: float,
    here: tuple[Point, Choice],
    when_full: tuple[Point, Choice],
    ground: _ChoiceTable,
    *,
    moved_from: tuple[Choice, Collection[str] | None],
    current: bool,
    two: bool,
) -> FloorResult:
    (point, choice), (full, full_choice), (now, moved) = here, when_full, moved_from
    reference = ground.reference_cost
    shares = dict(zip(ground.columns, point.shares, strict=True))
    replica_s = dict.fromkeys(ground.pool_of.values(), 0.0)
    for name, seconds in zip(ground.columns, point.work, strict=True):
        if name in ground.pool_of:
            replica_s[ground.pool_of[name]] += seconds * PREVIEWED_REQUESTS
    return FloorResult(
        floor=floor,
        willing_nanousd=point.willingness,
        reached=point.kept >= floor - 1e-6,
        kept=point.kept,
        kept_error=point.kept_error,
        cost_nanousd=round(point.cost * PREVIEWED_REQUESTS),
        margin_nanousd=round(point.margin * PREVIEWED_REQUESTS),
        full_willing_nanousd=full.willingness,
        full_nanousd=round(full.cost * PREVIEWED_REQUESTS),
        saving=1 - point.cost / reference if reference else None,
        shares=shares,
        own_share=sum(share for name, share in shares.items() if name in ground.own),
        replica_s=replica_s,
        current=current,
        moves=moves(now, choice, full_choice, moved),
        two=_two_first(ground, floor, point.willingness, choice.chosen) if two else None,
    )


def _two_first(ground: _ChoiceTable, floor: float, willingness: float, planned: Columns) -> TwoFirst:
    """Return the effect of asking two cheap targets first, where that is worth more than the plan's own choice."""
    choices, names, most = ground.choices, ground.columns, most_lost(floor)
    rows = np.arange(len(choices.weights))
    pairs = choose_pairs(choices.adequate, choices.order, planned, willingness, choices.reference, most)
    used = pairs.used
    one, other, right = (
        np.where(used, choices.adequate[rows, each], 0.0) for each in (pairs.first, pairs.second, pairs.third)
    )
    both = one * other
    again = np.where(used, 1 - both, 0.0)
    spent = choices.cost[rows, pairs.first] + choices.cost[rows, pairs.second]
    cost = np.where(used, spent + again * choices.cost[rows, pairs.third], choices.cost[rows, planned])
    alone = choices.adequate[rows, planned]
    low = np.where(used, np.maximum(right - (1 - one) * (1 - other), both), alone)
    high = np.where(used, both + (1 - both) * right, alone)
    ways: dict[tuple[str, str, str, str], tuple[float, float]] = {}
    for row in np.flatnonzero(used).tolist():
        way = (names[pairs.first[row]], names[pairs.second[row]], names[pairs.third[row]], names[planned[row]])
        asked, anew = ways.get(way, (0.0, 0.0))
        ways[way] = (asked + float(choices.share[row]), anew + float(choices.share[row] * again[row]))
    whole = choices.reference_quality
    return TwoFirst(
        asked=float(choices.share @ used),
        again=float(choices.share @ again),
        cost_nanousd=round(float(choices.share @ cost) * PREVIEWED_REQUESTS),
        kept_low=float(choices.share @ low) / whole if whole > 0 else 1.0,
        kept_high=float(choices.share @ high) / whole if whole > 0 else 1.0,
        ways=tuple((*way, *shares) for way, shares in sorted(ways.items())),
    )
