"""What a worker reads and writes through the control plane is what the database has."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.keys import Pepper
from accounts.store import AccountStore
from classifier.learning.requests import FEWEST, own_requests
from classifier.learning.store import ClassifiedRequest, LearningStore, Verdict
from classifier.tuning import Ability, Group, Tuning
from cost.budgets.grants import GrantNeed, GrantRequest, GrantStore
from cost.budgets.store import BudgetStore
from cost.price_book.book import DatedPrice
from cost.price_book.store import PriceStore
from cost.prices import price_from_usd
from gateway.link.answering import answer_from_database
from gateway.link.codec import Vocabulary
from gateway.link.connection import LinkDown
from gateway.link.hub import Hub
from gateway.link.link import Hello, Link, Synced
from gateway.link.questions import QUESTIONS
from gateway.link.remote import RemoteGrants, RemoteKeys, RemoteLearning, RemoteLimits, RemotePrices, RemoteTunings
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import Place, Rule
from proxy.admit.limits.store import LimitStore
from tests.cost.budgets.crowd import NOON_US, budget

VOCABULARY: Final = Vocabulary((Hello, Synced, *QUESTIONS))
PEPPER: Final = Pepper(id="p", secret=b"p" * 32)


@contextlib.asynccontextmanager
async def linked(engine: AsyncEngine) -> AsyncIterator[tuple[Link, Hub]]:
    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        path = Path(folder) / "link.sock"
        hub, link = Hub(VOCABULARY), Link(path, VOCABULARY)
        answer_from_database(hub.handlers, engine)
        await hub.start(path)
        link.start(Hello("one", 1))
        await link.synced(30)
        try:
            yield link, hub
        finally:
            await link.aclose()
            await hub.aclose()


async def test_prices(engine: AsyncEngine) -> None:
    """Versions keep their names and figures on both ways, prices for long prompts and batches included."""
    price = msgspec.structs.replace(
        price_from_usd(version="v1", input_usd=1, output_usd=2),
        batch=price_from_usd(version="v1", input_usd=0, output_usd=1),
    )
    dated = DatedPrice(target_id="m", price=price, source="config", effective_us=5, note="by hand")
    async with linked(engine) as (link, _):
        remote = RemotePrices(link)
        assert await remote.remember_all([dated]) == [dated]
        other = msgspec.structs.replace(dated, price=price_from_usd(version="v1", input_usd=3, output_usd=4))
        (renamed,) = await remote.remember_all([other])
        assert renamed.price.version != "v1"
        assert await remote.overrides() == await PriceStore(engine).overrides() == []


async def test_limits(engine: AsyncEngine) -> None:
    """Rules, and the version of their table, which tells of a change."""
    store = LimitStore(engine)
    async with linked(engine) as (link, _):
        remote = RemoteLimits(link)
        await AccountStore(engine).create_team("team_a", name="A")
        before = await remote.mark()
        rule = Rule(place=Place("team", "team_a"), limits=Limits(requests_per_minute=7))
        await store.put(rule)
        assert await remote.mark() == await store.mark() != before
        assert await remote.all() == await store.all()
        assert [each.limits for each in await remote.all()] == [rule.limits]


async def test_tunings(engine: AsyncEngine) -> None:
    """None, and one with abilities and groups."""
    store = LearningStore(engine)
    group = Group(group_id="g", centre=[0.5] * 64, shift={"m": 0.25}, verdicts=3)
    tuning = Tuning(
        version=1,
        artifact="abc",
        abilities={"m": Ability(weights=[1.5, -2.0], bias=0.5)},
        groups={"team_a": [group]},
    )
    async with linked(engine) as (link, _):
        remote = RemoteTunings(link)
        assert (await remote.active_version(), await remote.active_tuning()) == (None, None)
        version = await store.add_tuning(tuning)
        await store.activate(version)
        assert await remote.active_version() == version
        assert await remote.active_tuning() == await store.active_tuning()


async def test_rows_to_learn_from(engine: AsyncEngine) -> None:
    """Rows and verdicts are kept, and come back as a team's own requests; settings are the teams' present ones."""
    accounts = AccountStore(engine)
    await accounts.create_team("team_a", name="A")
    rows = [
        ClassifiedRequest(
            request_id=f"r{number}",
            at_us=number,
            organisation_id="default",
            team_id="team_a",
            target_id="m",
            artifact="abc",
            vector=bytes(8),
            complexity=0.5,
            input_tokens=number,
            output_tokens=2,
        )
        for number in range(FEWEST)
    ]
    verdict = Verdict(
        request_id="r1",
        at_us=9,
        organisation_id="default",
        team_id="team_a",
        target_id="m",
        source="feedback",
        signal="thumb",
        adequate=1.0,
    )
    async with linked(engine) as (link, _):
        remote = RemoteLearning(link)
        assert await remote.own_requests("team_a", "abc", 4) is None
        await remote.add(rows, [verdict])
        told, stored = await remote.own_requests("team_a", "abc", 4), await own_requests(engine, "team_a", "abc", 4)
        assert told is not None
        assert stored is not None
        assert told.input_tokens.tolist() == stored.input_tokens.tolist()
        assert told.vectors.tolist() == stored.vectors.tolist()
        assert sum(each.verdicts for each in await LearningStore(engine).counts()) == 1
        assert await remote.learning_of(["team_a", "team_b"]) == {"team_a": "numbers"}


async def test_keys_come_from_the_database_itself_while_the_control_plane_is_away(engine: AsyncEngine) -> None:
    """Many at once, in order; a worker whose control plane died asks the database."""
    accounts = AccountStore(engine)
    await accounts.create_team("team_a", name="A")
    minted = [await accounts.create_key("team_a", name, PEPPER) for name in ("one", "two")]
    digests = [minted[1].digest, "0" * 64, minted[0].digest]
    direct = 0

    async def otherwise(asked: list[str]) -> list[object]:
        nonlocal direct
        direct += 1
        return list(await accounts.find_keys(asked))

    async with linked(engine) as (link, hub):
        remote = RemoteKeys(link, otherwise)  # type: ignore[arg-type]
        assert await remote.find_keys(digests) == await accounts.find_keys(digests)
        assert direct == 0
        await hub.aclose()
        assert await remote.find_keys(digests) == await accounts.find_keys(digests)
        assert direct == 1


async def test_grants(engine: AsyncEngine) -> None:
    """Unused ones are given back through the control plane; what a caller waits for does not need it."""
    await BudgetStore(engine).put(budget(1_000))
    store = GrantStore(engine)
    async with linked(engine) as (link, hub):
        remote = RemoteGrants(link, store)
        want = GrantRequest(amount_nanousd=100, budget_ids=("b1",))
        given = await remote.renew_grants("boot1", {"b1": GrantNeed(floor_nanousd=0)}, [want], NOON_US)
        assert given["b1"].granted_nanousd >= 100
        assert await remote.standings(NOON_US) == await store.standings(NOON_US)
        back = await remote.renew_grants("boot1", {"b1": GrantNeed(floor_nanousd=40)}, [], NOON_US)
        assert back["b1"].granted_nanousd == 40
        assert [each.held_nanousd for each in await store.standings(NOON_US)] == [40]
        await hub.aclose()
        assert await remote.standings(NOON_US) == await store.standings(NOON_US)
        again = await remote.renew_grants("boot1", {"b1": GrantNeed(floor_nanousd=40)}, [want], NOON_US)
        assert again["b1"].granted_nanousd >= 140
        with pytest.raises(LinkDown):
            await remote.renew_grants("boot1", {"b1": GrantNeed(floor_nanousd=0)}, [], NOON_US)
