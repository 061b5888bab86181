"""What the line does about money: budgets, tags, the experiment's arms, and the figures beside each entry's cost."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from accounts.caller import Role
from cost.budgets.budget_reservations import BudgetCheck
from cost.errors import BudgetExceeded
from cost.ledger.entries import Entry
from cost.ledger.ledger import MemoryLedger
from cost.meters import METER_COLUMNS
from cost.savings.comparators import Comparator, Comparators
from cost.savings.holdout import arm_of
from cost.scopes import Spender
from proxy.plan.decision_record import read
from tests.proxy.plan.test_route_plan import price
from tests.scenarios.test_rules import Broken, House, chunk

pytestmark = pytest.mark.usefixtures("leaping_time")


class Gate:
    """Budgets that stand as the test says, and keep who was asked about."""

    def __init__(self, known: BudgetCheck) -> None:
        self.answer = known
        self.asked: list[tuple[str, str, str, str]] = []

    def check(self, spender: Spender) -> BudgetCheck:
        self.asked.append((spender.organisation_id, spender.team_id, spender.key_id, spender.tag))
        return self.answer


class TightBooks(MemoryLedger):
    """Books with room for attempts up to a price."""

    holds_money = True

    def __init__(self, room_nanousd: int, *, downgrade: bool) -> None:
        super().__init__()
        self.room_nanousd = room_nanousd
        self.downgrade = downgrade
        self.holds: list[int | None] = []

    async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> bool:
        self.holds.append(hold_nanousd)
        if hold_nanousd is None or hold_nanousd > self.room_nanousd:
            raise exceeded(downgrade=self.downgrade)
        return await super().reserve(entry, hold_nanousd)


def exceeded(*, downgrade: bool = False) -> BudgetExceeded:
    return BudgetExceeded(
        scope="team",
        scope_id="team_a",
        period_adjective="monthly",
        limit_nanousd=500_000_000_000,
        resets_at=datetime(2026, 12, 1, tzinfo=UTC),
        downgrade=downgrade,
    )


def headers_of(sent: list[dict[str, Any]]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def settled(house: House) -> Entry:
    return next(entry for entry in house.books.entries if entry.entry == "settle")


async def test_a_spent_budget_is_refused_before_anything_is_weighed() -> None:
    """402, what is spent and when it begins anew; nothing is booked and no upstream is called."""
    gate = Gate(BudgetCheck(exceeded=exceeded()))
    house = House("ok", budgets=gate)
    sent = await house.ask(stream=False, tag="search")
    assert sent[0]["status"] == 402
    body = json.loads(sent[1]["body"])["error"]
    assert (body["code"], body["type"]) == ("budget_exceeded", "insufficient_quota")
    assert "2026-12-01" in body["message"]
    assert headers_of(sent)["x-should-retry"] == "false"
    assert gate.asked == [("o", "team_a", gate.asked[0][2], "search")]
    assert house.books.entries == []


async def test_a_soft_budget_downgrades_a_named_model() -> None:
    """The cheapest capable target stands in, the reply says so, and the books keep the name that was asked for."""
    house = House("ok", "ok", budgets=Gate(BudgetCheck(downgrade=True)))
    sent = await house.ask(stream=False, model="t1")
    assert headers_of(sent)["x-weighbridge-target"] == "t0"
    assert headers_of(sent)["x-weighbridge-downgraded"] == "budget"
    assert (settled(house).alias, settled(house).target_id) == ("t1", "t0")


async def test_a_hold_that_does_not_fit_tries_the_cheapest_that_may() -> None:
    """The dear target's most is above the room, the cheap one's is not: one attempt is booked, as the first."""
    books = TightBooks(10_000_000, downgrade=True)
    house = House("ok", "ok", books=books)
    dear = msgspec.structs.replace(house.line.config.catalog.targets["t1"], price=price(1_000, 1_000))
    catalog = msgspec.structs.replace(
        house.line.config.catalog, targets={**house.line.config.catalog.targets, "t1": dear}
    )
    house.line.config = msgspec.structs.replace(house.line.config, catalog=catalog)
    sent = await house.ask(stream=False, model="t1")
    assert (sent[0]["status"], headers_of(sent)["x-weighbridge-target"]) == (200, "t0")
    assert [(entry.entry, entry.attempt, entry.target_id) for entry in books.entries] == [
        ("reserve", 1, "t0"),
        ("settle", 1, "t0"),
    ]


async def test_a_hold_that_does_not_fit_is_refused_without_a_downgrade() -> None:
    """402, and the books are as they were."""
    house = House("ok", "ok", books=TightBooks(0, downgrade=False))
    sent = await house.ask(stream=False, model="t1")
    assert sent[0]["status"] == 402
    assert house.books.entries == []


async def test_what_auto_cannot_hold_for_one_target_it_holds_for_one_that_takes_less() -> None:
    """The first of the plan is not the one that holds least: a long answer of it may cost more."""
    books = TightBooks(10_000_000, downgrade=False)
    house = House("ok", "ok", books=books)
    targets = dict(house.line.config.catalog.targets)
    targets["t0"] = msgspec.structs.replace(targets["t0"], price=price(1, 1), max_output_tokens=30_000)
    targets["t1"] = msgspec.structs.replace(targets["t1"], price=price(2, 2), max_output_tokens=1_000)
    catalog = msgspec.structs.replace(house.line.config.catalog, targets=targets)
    house.line.config = msgspec.structs.replace(house.line.config, catalog=catalog)
    sent = await house.ask(stream=False)
    assert (sent[0]["status"], headers_of(sent)["x-weighbridge-target"]) == (200, "t1")
    assert [(entry.entry, entry.attempt, entry.target_id) for entry in books.entries] == [
        ("reserve", 1, "t1"),
        ("settle", 1, "t1"),
    ]
    books.room_nanousd = 0
    assert (await house.ask(stream=False))[0]["status"] == 402


async def test_what_is_held_is_more_than_the_answer_can_cost() -> None:
    """With max_tokens given, the hold bounds the settled cost, also where the estimate of the prompt is too low."""
    books = TightBooks(10**12, downgrade=False)
    house = House("ok", books=books)
    await house.ask(stream=False, max_tokens=10, messages=[{"role": "user", "content": "é" * 500}])
    (hold,) = books.holds
    reserve = books.entries[0]
    assert hold is not None
    assert reserve.cost_nanousd is not None
    assert hold >= reserve.cost_nanousd
    # A dollar a million: at least a token for each of the thousand bytes, and the ten of the answer.
    assert hold >= 1_010 * 1_000


@pytest.mark.parametrize("n", [1, 3])
async def test_an_estimate_is_never_above_what_was_held(n: int) -> None:
    """Ten tokens of blanks are hundreds of characters; nobody told the usage, and `max_tokens` still bounds the guess."""
    books = TightBooks(10**12, downgrade=False)
    house = House("ok", upstream=Broken([chunk(" " * 400)]), books=books)
    await house.ask(stream=True, max_tokens=10, n=n)
    entry = settled(house)
    assert (entry.usage_source, entry.output_tokens) == ("estimated", 10 * n)
    (hold,) = books.holds
    assert hold is not None
    assert entry.cost_nanousd is not None
    assert entry.cost_nanousd <= hold


async def test_entries_have_the_end_user_that_the_body_names() -> None:
    """In the reserve and in what closes it."""
    house = House("ok")
    await house.ask(stream=False, model="t0", user="u-17")
    assert {entry.end_user for entry in house.books.entries} == {"u-17"}


async def test_an_entry_has_its_tag_its_meters_and_all_three_comparisons() -> None:
    """The meters add up to the cost; a bought target is its own cheapest and its own host."""
    house = House("ok")
    await house.ask(stream=False, model="t0", tag="search")
    entry = settled(house)
    assert (entry.tag, entry.served, entry.origin, entry.pool) == ("search", True, "caller", "")
    assert sum(getattr(entry, name) for name in METER_COLUMNS) == entry.cost_nanousd
    assert entry.baseline_price == "dear@test"
    assert (entry.cheapest_nanousd, entry.hosted_nanousd) == (entry.cost_nanousd, entry.cost_nanousd)
    assert entry.cheapest_price == entry.hosted_price == "t0@test"


async def test_our_own_gpus_are_compared_with_hosts_and_with_what_could_be_bought() -> None:
    """The pool's name is booked; the cheapest capable target that is for sale is the second comparison."""
    house = House("ok", "ok")
    together = Comparator(target_id="together", price=price(3, 3))
    rules = house.line.config
    house.line.config = msgspec.structs.replace(
        rules,
        pools={"t0": "h100"},
        policy=msgspec.structs.replace(rules.policy, pooled=frozenset({"t0"})),
        comparators=Comparators(reference=rules.comparators.reference, hosted={"t0": together}),
    )
    await house.ask(stream=False)
    entry = settled(house)
    assert (entry.target_id, entry.pool) == ("t0", "h100")
    assert (entry.cheapest_price, entry.hosted_price) == ("t1@test", "together@test")
    assert entry.cost_nanousd is not None
    assert entry.cheapest_nanousd == 2 * entry.cost_nanousd
    assert entry.hosted_nanousd == 3 * entry.cost_nanousd


async def test_an_answer_that_nobody_got_claims_no_saving() -> None:
    """The attempt that failed costs; only the one that served has baselines."""
    house = House("cut-1+tokens-5")
    await house.ask(stream=True)
    entry = settled(house)
    assert not entry.served
    assert (entry.baseline_nanousd, entry.cheapest_nanousd, entry.hosted_nanousd) == (None, None, None)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_arms_of_the_experiment(stream: bool) -> None:
    """Of `auto` the drawn go to the reference, as many go where they would have gone and are marked, the rest is not."""
    house = House("ok", "ok")
    rules = house.line.config
    policy = msgspec.structs.replace(rules.policy, reference="t1")
    house.line.config = msgspec.structs.replace(rules, policy=policy, holdout_share=0.3)
    for _ in range(40):
        await house.ask(stream=stream)
    entries = [entry for entry in house.books.entries if entry.entry == "settle"]
    assert {entry.arm for entry in entries} == {"holdout", "control", ""}
    for entry in entries:
        assert entry.arm == arm_of(entry.request_id, 0.3)
        assert entry.target_id == ("t1" if entry.arm == "holdout" else "t0")
        assert (entry.reason == "holdout") is (entry.arm == "holdout")
    await house.ask(stream=stream, model="t0")
    assert house.books.entries[-1].arm == ""


async def test_nobody_is_drawn_where_the_reference_cannot_serve() -> None:
    """Both arms hold only what could have gone to the reference, or they could not be compared."""
    house = House("ok", "ok")
    rules = house.line.config
    house.line.config = msgspec.structs.replace(
        rules, policy=msgspec.structs.replace(rules.policy, reference="gone"), holdout_share=0.5
    )
    for _ in range(10):
        await house.ask(stream=False)
    assert {entry.arm for entry in house.books.entries} == {""}


@pytest.mark.parametrize(("role", "status"), [("member", 200), ("admin", 200), ("finance", 403)])
async def test_a_finance_key_calls_no_model(role: Role, status: int) -> None:
    """It reads everything and changes nothing; spending is a change."""
    house = House("ok", role=role)
    sent = await house.ask(stream=False)
    assert sent[0]["status"] == status


@pytest.mark.parametrize("tag", ["", "a b", "x" * 65, "=cmd", "ä"])
async def test_a_tag_that_is_none_is_refused(tag: str) -> None:
    """400 that names the field; nothing is booked."""
    house = House("ok")
    sent: list[Any] = await house.ask(stream=False, tag=tag)
    assert sent[0]["status"] == 400
    assert json.loads(sent[1]["body"])["error"]["param"] == "x-weighbridge-tag"
    assert house.books.entries == []


async def test_a_choice_is_written_down_once() -> None:
    """With the first attempt, when it closes; nothing where the caller named the model, for nothing was chosen."""
    house = House("error-503", "ok")
    await house.ask(stream=False)
    assert settled(house).target_id == "t1"
    (only,) = [each for each in house.books.entries if each.considered]
    assert (only.entry, only.attempt) == ("void", 1)
    told = read(only.considered)
    assert told is not None
    assert [each.target_id for each in told.targets if each.may_be_asked] == ["t0", "t1"]
    named = House("ok")
    await named.ask(stream=False, model="t0")
    assert settled(named).considered == ""


class HeldBooks(MemoryLedger):
    """Books of a budget that the process learns of only with its reservation."""

    async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> bool:
        await super().reserve(entry, hold_nanousd)
        return True


async def test_what_a_reservation_holds_is_bounded_from_the_first_one_on() -> None:
    """A stream that ignores its limit is cut although nobody knew of the budget when it was planned, and its target is set
    aside.
    """
    gate = Gate(BudgetCheck())
    house = House("tokens-900", budgets=gate, books=HeldBooks())
    await house.ask(stream=True, max_tokens=10)
    assert "cut_at_bound" in settled(house).flags
    gate.answer = BudgetCheck(hard=True)
    sent = await house.ask(stream=True, max_tokens=10)
    assert (sent[0]["status"], b"set aside for hard budgets" in sent[1]["body"]) == (400, True)
