"""The three rules of the line, each under its own name."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from accounts.caller import Caller, Role, TeamSettings
from accounts.directory import Directory
from accounts.keys import Pepper, mint_key
from accounts.store import StoredKey
from classifier.heuristic import HeuristicClassifier
from classifier.prediction import Classifier
from cost.ledger.ledger import Books, MemoryLedger
from cost.savings.comparators import Comparator, Comparators
from providers.breaker import Breakers
from providers.catalog import Catalog
from providers.config import BreakerConfig, RetryConfig, TimeoutsConfig
from providers.errors import StreamCut
from providers.retry_budget import RetryBudget, RetryBudgets
from providers.target import Deployment, DeploymentKind
from providers.upstream import Upstream, UpstreamCall, UpstreamStream
from providers.wire import Event, decode_event
from proxy.admit.admission import AdmissionControl, BudgetGate
from proxy.admit.limits.limit import Limit
from proxy.admit.limits.limiter import BucketLimiter
from proxy.cache.answer_cache import AnswerCache
from proxy.dispatch.dispatcher import Dispatcher
from proxy.dispatch.load_balancer import QueueClient
from proxy.dispatch.outcome import RequestOutcome
from proxy.parse.parsed_request import RequestParser
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.completions.wire import COMPLETIONS
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.wire import Wire
from proxy.pipeline import RequestPipeline
from proxy.plan.pipeline_config import EscalationRules, PipelineConfig
from proxy.plan.route_plan import Policy
from proxy.plan.session_affinity import Affinity
from proxy.shared.deadline import DeadlinesSection
from proxy.shared.target_latency import LatencyTracker
from testing.scripted.upstream import ScriptedUpstream
from tests.proxy.exchanges import HeardExchange
from tests.proxy.plan.test_route_plan import price, target

pytestmark = pytest.mark.usefixtures("leaping_time")

PEPPER = Pepper(id="t", secret=b"p" * 32)
MINTED = mint_key(PEPPER)


class OneKey:
    """A key store with one key in it."""

    def __init__(self, settings: TeamSettings, role: Role = "member") -> None:
        self.role = role
        self.settings = settings

    async def find_keys(self, digests: list[str]) -> list[StoredKey | None]:
        return [self._find(digest) for digest in digests]

    def _find(self, digest: str) -> StoredKey | None:
        if digest != MINTED.digest:
            return None
        return StoredKey(
            key_id=MINTED.key_id,
            name="k",
            digest=digest,
            pepper_id=PEPPER.id,
            team_id="team_a",
            organisation_id="o",
            allowed_models=None,
            revoked_at=None,
            expires_at=None,
            settings=self.settings,
            role=self.role,
        )


class Told:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[RequestOutcome] = []

    def finished(self, outcome: RequestOutcome) -> None:
        self.outcomes.append(outcome)


class House:
    """A line over scripted upstreams, with books in memory. Each target is dearer than the one before."""

    def __init__(
        self,
        *scripts: str,
        upstream: Upstream | None = None,
        capabilities: Sequence[float] = (),
        settings: TeamSettings | None = None,
        classifier: Classifier | None = None,
        budgets: BudgetGate | None = None,
        books: MemoryLedger | None = None,
        role: Role = "member",
        queues: QueueClient | None = None,
        latency: LatencyTracker | None = None,
        deadlines: DeadlinesSection | None = None,
        limits: tuple[Limit, ...] = (),
        first_token_s: float = 0.05,
        backoff_s: float = 0,
        siblings: Sequence[str] = (),
        hedged_after_s: float | None = None,
        hedged_share: float = 0.05,
        kind: DeploymentKind = "scripted",
        cache: Callable[[Books], AnswerCache] | None = None,
    ) -> None:
        """`siblings` are the scripts of the first target's other deployments. With `hedged_after_s` every attempt that is
        later has another one beside it, as far as the budget goes: one at first, and `hedged_share` of the requests.
        """
        self.books = books or MemoryLedger()
        self.told = Told()
        self.upstream = ScriptedUpstream()
        loop = asyncio.get_running_loop()
        self.breakers = breakers = Breakers(BreakerConfig(), loop.time)
        deployments = {
            name: Deployment(deployment_id=f"{name}/a", target_id=name, kind=kind, upstream_model=script)
            for name, script in ((f"t{index}", script) for index, script in enumerate(scripts))
        }
        others = tuple(
            # Asked first only once in many times.
            Deployment(deployment_id=f"t0/{index}", target_id="t0", kind=kind, upstream_model=script, weight=1e-9)
            for index, script in enumerate(siblings)
        )
        if hedged_after_s is not None:
            latency = latency or LatencyTracker(loop.time)
            for name in deployments:
                for _ in range(20):
                    latency.observe(name, hedged_after_s, None)
                    latency.observe_whole(name, hedged_after_s)
        targets = {
            name: target(
                name,
                deployments=(each, *others) if name == "t0" else (each,),
                hedged_tiers=frozenset() if hedged_after_s is None else frozenset({"interactive"}),
                price=price(1 + index, 1 + index),
                capability=capabilities[index] if capabilities else 1.0,
            )
            for index, (name, each) in enumerate(deployments.items())
        }
        self.line = RequestPipeline(
            config=PipelineConfig(
                catalog=Catalog(targets=targets),
                policy=Policy(),
                comparators=Comparators(reference=Comparator(target_id="dear", price=price(10, 10))),
                timeouts=TimeoutsConfig(first_token_interactive_s=first_token_s, idle_s=0.05, total_s=0.2),
                retry=RetryConfig(),
                max_in_flight=100,
                max_body_bytes=100_000,
                max_upload_bytes=100_000,
                body_timeout_s=1,
                deadlines=deadlines or DeadlinesSection(),
            ),
            parser=RequestParser(Directory(OneKey(settings or TeamSettings(), role), [PEPPER], loop.time)),
            admission=AdmissionControl(
                BucketLimiter(lambda _caller, _model, _end_user: limits, lambda: 1, clock=loop.time), budgets=budgets
            ),
            classifier=classifier or HeuristicClassifier(),
            affinity=Affinity(loop.time),
            breakers=breakers,
            dispatcher=Dispatcher(
                upstream=upstream or self.upstream,
                breakers=breakers,
                budgets=RetryBudgets(RetryConfig(), loop.time),
                books=self.books,
                clock=loop.time,
                now_us=lambda: 1,
                rng=random.Random(1),
                sleep=lambda _s: asyncio.sleep(backoff_s),
                queues=queues,
                latency=latency,
                hedging=None if latency is None else RetryBudget(hedged_share, 1, 10, loop.time),
            ),
            observers=(self.told,),
            clock=loop.time,
            latency=latency,
            cache=None if cache is None else cache(self.books),
        )

    async def ask(
        self,
        *,
        stream: bool,
        hang_up_after: int | None = None,
        hang_up_after_s: float | None = None,
        n: int = 1,
        include_usage: bool = False,
        escalate: str | None = None,
        tag: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
        wire: Wire = CHAT,
        **more: Any,
    ) -> list[dict[str, Any]]:
        """One request; the caller hangs up after so many messages of the reply, or so long after asking."""
        fields: dict[str, Any] = {"model": "auto", "stream": stream, "n": n, **more}
        if include_usage:
            fields["stream_options"] = {"include_usage": True}
        body = json.dumps({**_ASKED[wire.name], **fields}).encode()
        sent_headers = [
            (b"authorization", f"Bearer {MINTED.plaintext}".encode()),
            (b"content-length", str(len(body)).encode()),
            *headers,
        ]
        if escalate is not None:
            sent_headers.append((b"x-weighbridge-escalate", escalate.encode()))
        if tag is not None:
            sent_headers.append((b"x-weighbridge-tag", tag.encode()))
        loop = asyncio.get_running_loop()

        def heard() -> None:
            if hang_up_after is not None and len(exchange.messages) == hang_up_after:
                # Not from inside of what is told to it.
                loop.call_soon(exchange.hang_up)

        exchange = HeardExchange(body, sent_headers, heard=heard)
        if hang_up_after == 0:
            exchange.hang_up()
        if hang_up_after_s is not None:
            loop.call_later(hang_up_after_s, exchange.hang_up)
        await self.line.serve(wire, exchange)
        return exchange.messages


def said(sent: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(message.get("body", b"") for message in sent)


WIRES = (CHAT, MESSAGES, RESPONSES, COMPLETIONS)
_TURNS = {"messages": [{"role": "user", "content": "hi"}]}
_ASKED: dict[str, dict[str, Any]] = {
    "chat": _TURNS,
    "messages": {**_TURNS, "max_tokens": 100},
    "responses": {"input": "hi"},
    "completions": {"prompt": "hi"},
}

SCRIPTS = [
    *("ok", "ok+tokens-6", "no-usage", "absurd-usage", "no-done", "error-500", "error-400", "error-429", "error-401"),
    *(
        "slow-first-token-10ms",
        "hang",
        "hang-1",
        "hang-3",
        "cut-0",
        "cut-1",
        "cut-3",
        "malformed-0",
        "malformed-2",
        "error-at-1",
        "error-at-3",
    ),
]


WEAK = ["truncated", "refusal", "apology", "filtered", "truncated+no-usage", "truncated+every-2ms", "apology+cut-3"] * 2


async def test_every_attempt_settles_exactly_once() -> None:
    """Whatever upstreams do and whenever callers leave: one reserve, one closing entry, one outcome a request."""
    rng = random.Random(20261121)
    for _ in range(300):
        escalate = rng.choice([None, "true"])
        scripts = SCRIPTS if escalate is None else [*SCRIPTS, *WEAK]
        hedged: dict[str, Any] = rng.choice(
            [{}, {"hedged_after_s": 0.005}, {"hedged_after_s": 0.005, "siblings": rng.choices(scripts, k=1)}]
        )
        if rng.random() < 0.3:
            hedged |= {"kind": "vllm", "settings": TeamSettings(continue_streams=True)}
            hedged.setdefault("siblings", rng.choices(scripts, k=2))
        house = House(*rng.choices(scripts, k=3), capabilities=(0.8, 0.9, 1.0), **hedged)
        hang_up = rng.choice([None, None, 0, 1, 2, 3, 4, 6])
        hang_up_s = rng.choice([None, None, 0.01])
        await house.ask(
            stream=rng.random() < 0.7,
            hang_up_after=hang_up,
            hang_up_after_s=hang_up_s,
            escalate=escalate,
            wire=rng.choice(WIRES),
        )
        entries = Counter((entry.request_id, entry.attempt, entry.entry == "reserve") for entry in house.books.entries)
        assert set(entries.values()) <= {1}
        reserved = {key[:2] for key in entries if key[2]}
        closed = {key[:2] for key in entries if not key[2]}
        assert reserved == closed
        assert len(house.told.outcomes) == 1
        assert len(house.told.outcomes[0].attempts) == len(closed)
        assert house.upstream.open_streams == 0
        assert house.line.in_flight == 0


@pytest.mark.usefixtures("leaping_time")
async def test_a_task_cancelled_from_outside_settles_too() -> None:
    """A forced shutdown cancels the task itself; its attempt is closed on the way out."""
    house = House("ok+tokens-50+every-5ms")
    task = asyncio.create_task(house.ask(stream=True))
    await asyncio.sleep(0.03)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [entry.entry for entry in house.books.entries] == ["reserve", "settle"]
    assert house.books.entries[-1].flags[0] == "shutdown"


@pytest.mark.parametrize("hang_up", [None, 3])
async def test_a_continued_stream_is_booked_once_more_and_served_once(hang_up: int | None) -> None:
    """Its rest is an attempt of its own, also for a caller who hangs up in it."""
    settings = TeamSettings(continue_streams=True)
    house = House("cut-2", siblings=["tokens-9"], settings=settings, kind="vllm")
    sent = await house.ask(stream=True, include_usage=True, hang_up_after=hang_up)
    kinds = [(entry.entry, entry.attempt) for entry in house.books.entries]
    assert kinds == [("reserve", 1), ("settle", 1), ("reserve", 2), ("settle", 2)]
    (outcome,) = house.told.outcomes
    assert [each.continues for each in outcome.attempts] == [False, True]
    first, rest = (entry for entry in house.books.entries if entry.entry == "settle")
    assert first.baseline_nanousd is None
    assert outcome.ttft_s is not None
    if hang_up is None:
        assert said(sent).endswith(b"data: [DONE]\n\n")
        assert (outcome.input_tokens, outcome.output_tokens) == (
            first.input_tokens,
            first.output_tokens + rest.output_tokens,
        )
        # Ten dollars a million of either: the whole answer, once.
        assert rest.baseline_nanousd == 10_000 * (outcome.input_tokens + outcome.output_tokens)
        assert outcome.cost_nanousd == (first.cost_nanousd or 0) + (rest.cost_nanousd or 0)
        assert outcome.baseline_nanousd == rest.baseline_nanousd


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("broken", ["cut-2", "hang-2", "malformed-2", "error-at-2"])
async def test_no_fallback_after_commit(broken: str, wire: Wire) -> None:
    """Once a token is out nothing else is called, though the plan has another candidate."""
    house = House(broken, "ok")
    sent = await house.ask(stream=True, wire=wire)
    assert [call.deployment.target_id for call in house.upstream.calls] == ["t0"]
    assert b'"error"' in said(sent)
    assert b"[DONE]" not in said(sent)
    assert sent[-1]["more"] is False


@pytest.mark.parametrize("broken", ["cut-6", "hang-6", "malformed-6", "error-at-6", "truncated"])
async def test_no_fallback_and_no_escalation_after_commit(broken: str) -> None:
    """A stream that was held back and grew too large is committed: weak or broken, nothing else is called."""
    house = House(f"{broken}+tokens-20", "ok", capabilities=(0.8, 1.0))
    house.line.config = msgspec.structs.replace(house.line.config, escalation=EscalationRules(hold_max_bytes=600))
    sent = await house.ask(stream=True, escalate="true")
    assert [call.deployment.target_id for call in house.upstream.calls] == ["t0"]
    assert b" w3" in said(sent)
    assert (b'"error"' in said(sent)) == (broken != "truncated")
    assert (b"[DONE]" in said(sent)) == (broken == "truncated")


async def test_before_commit_the_next_candidate_answers() -> None:
    """The twin of the rule: until a token is out, the caller never learns of a failure."""
    house = House("cut-1", "ok")
    sent = await house.ask(stream=True)
    assert b"[DONE]" in said(sent)
    assert house.told.outcomes[0].target_id == "t1"


async def test_planning_is_pure() -> None:
    """Asking twice changes nothing: the same house gives the same answer to the same request, call by call.

    tests/proxy/plan/test_route_plan.py has the properties of `plan` itself.
    """
    house = House("ok", "ok")
    answers = [await house.ask(stream=False) for _ in range(3)]
    reasons = [dict(answer[0]["headers"])[b"x-weighbridge-reason"] for answer in answers]
    assert reasons == [b"cheapest-capable"] * 3


async def test_books_that_refuse_let_no_request_through() -> None:
    """Without a durable reserve nothing is called: 503, and no upstream saw it."""
    house = House("ok")
    house.books.accepting = False
    sent = await house.ask(stream=False)
    assert sent[0]["status"] == 503
    assert not house.upstream.calls
    assert not house.books.entries


async def test_nothing_is_read_of_a_caller_without_a_key() -> None:
    """The body is not even asked for."""
    house = House("ok")
    exchange = HeardExchange(None)
    await house.line.serve(CHAT, exchange)
    assert exchange.messages[0]["status"] == 401
    assert exchange._limit is None


async def test_a_draining_line_refuses_new_work() -> None:
    """503 with a wait, so that the client goes to another replica."""
    house = House("ok")
    house.line.draining = True
    sent = await house.ask(stream=False)
    assert sent[0]["status"] == 503
    assert b"retry-after" in dict(sent[0]["headers"])


async def test_an_outcome_never_holds_content() -> None:
    """What observers are told never shows a prompt, and has no completion and no key to show."""
    house = House("ok", settings=TeamSettings(learning="prompts"))
    await house.ask(stream=True, messages=[{"role": "user", "content": "canary"}])
    (outcome,) = house.told.outcomes
    assert outcome.prompt is not None
    assert "canary" not in repr(outcome)
    whole = repr(msgspec.structs.asdict(outcome))
    assert MINTED.plaintext not in whole
    # Ids and digests are random, and a word as short as the answer's may stand in one by chance.
    random = {"request_id", "key_id", "request_digest"}
    told = {name: value for name, value in msgspec.structs.asdict(outcome).items() if name not in random}
    assert "w0" not in repr(told)
    assert Caller.__struct_fields__ == (
        *("key_id", "key_name", "team_id", "organisation_id", "allowed_models"),
        *("settings", "role", "guard"),
    )


class Stuck:
    """An upstream whose streams fail, and whose closing fails or never ends."""

    ended = False

    def __init__(self, failure: Exception, closing: Exception | None) -> None:
        self.failure = failure
        self.closing = closing

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        return self

    async def read(self) -> list[Event] | None:
        raise self.failure

    def unread(self) -> list[Event]:
        return []

    async def aclose(self) -> None:
        if self.closing is not None:
            raise self.closing
        await asyncio.sleep(3_600)


@pytest.mark.parametrize("closing", [RuntimeError("broken"), None])
@pytest.mark.parametrize("failure", [StreamCut("cut", deployment_id="t0/a"), TimeoutError(), RuntimeError("bug")])
@pytest.mark.usefixtures("leaping_time")
async def test_a_close_that_fails_or_hangs_leaves_nothing_open(failure: Exception, closing: Exception | None) -> None:
    """The books and the breaker's permit come before the closing, whatever the closing does."""
    house = House("ok", upstream=Stuck(failure, closing))
    task = asyncio.create_task(house.ask(stream=True))
    await asyncio.sleep(0.1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    kinds = Counter((entry.attempt, entry.entry == "reserve") for entry in house.books.entries)
    assert kinds
    assert set(kinds.values()) == {1}
    assert {attempt for attempt, reserve in kinds if reserve} == {attempt for attempt, reserve in kinds if not reserve}


class Broken:
    """A stream of given events that then breaks off."""

    ended = False

    def __init__(self, events: list[bytes]) -> None:
        self.events = events

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        return self

    async def read(self) -> list[Event] | None:
        if not self.events:
            raise StreamCut("cut", deployment_id="t0/a")
        return [decode_event(self.events.pop(0), "t0/a")]

    def unread(self) -> list[Event]:
        return []

    async def aclose(self) -> None: ...


def chunk(text: str, *, choice: int = 0, completion: int | None = None) -> bytes:
    body: dict[str, Any] = {"choices": [{"index": choice, "delta": {"content": text}}]}
    if completion is not None:
        body["usage"] = {"prompt_tokens": 5, "completion_tokens": completion, "total_tokens": 5 + completion}
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("events", "n", "output", "source"),
    [
        ([chunk("a", completion=0), *(chunk("b") for _ in range(9))], 1, 10, "estimated"),
        ([chunk("a", choice=i % 4, completion=i // 4 + 1) for i in range(20)], 4, 20, "estimated"),
        ([chunk("a", completion=i + 1) for i in range(20)], 1, 20, "upstream"),
    ],
)
async def test_an_interrupted_stream_is_not_booked_from_an_early_report(
    events: list[bytes], n: int, output: int, source: str
) -> None:
    """A report that more tokens followed, or that counts one choice of several, is no whole; vLLM's on every event is."""
    house = House("ok", upstream=Broken(events))
    await house.ask(stream=True, n=n)
    closing = house.books.entries[-1]
    assert (closing.output_tokens, closing.usage_source) == (output, source)


class Silent(Broken):
    """Ends at once, properly, having said nothing."""

    async def read(self) -> list[Event] | None:
        return None


async def test_a_reply_without_any_choice_is_no_answer() -> None:
    """[DONE] alone is an upstream's failure, not an empty success."""
    house = House("ok", upstream=Silent([]))
    sent = await house.ask(stream=True)
    assert sent[0]["status"] == 502
    assert b"upstream_malformed" in said(sent)


async def test_a_full_process_refuses_before_it_reads() -> None:
    """The limit on requests in flight is looked at before the body."""
    house = House("ok")
    house.line.config = msgspec.structs.replace(house.line.config, max_in_flight=0)
    sent = await house.ask(stream=False)
    assert sent[0]["status"] == 503
    assert b"overloaded" in said(sent)


class Unanswered:
    """An upstream whose calls come to nothing, after what they tell of their connection."""

    def __init__(self, *told: bool) -> None:
        self.told = told
        self.asked = asyncio.Event()

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        for reached in self.told:
            call.reaches(reached)
        self.asked.set()
        return await asyncio.Future()

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize(
    ("told", "kind", "source"),
    [((False,), "void", "none"), ((False, True), "settle", "estimated"), ((), "settle", "estimated")],
)
async def test_what_never_left_us_costs_nothing(told: tuple[bool, ...], kind: str, source: str, gone: bool) -> None:
    """Neither when the first token's time ends nor when the caller does. Where it may have been seen, it is a guess."""
    upstream = Unanswered(*told)
    house = House("ok", upstream=upstream)
    asking = asyncio.create_task(house.ask(stream=True))
    if gone:
        await upstream.asked.wait()
        asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    closings = [entry for entry in house.books.entries if entry.entry != "reserve"]
    assert len(closings) * 2 == len(house.books.entries) > 0
    assert {(each.entry, each.usage_source) for each in closings} == {(kind, source)}
    for each in closings:
        assert each.flags[0] == ("caller_gone" if gone else "first_token_timeout")
        assert (each.cost_nanousd == 0) == (kind == "void")
        assert (each.input_tokens == 0) == (kind == "void")
