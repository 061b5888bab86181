"""The operators' pages: who sees them, what they tell of a gateway in trouble, and what they never tell."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from accounts.access import OrganisationRole
from accounts.audit.log import Scope
from api.live.readers import open_operations
from api.operations.snapshot import operations_snapshot
from api.operations.stores import in_database
from api.web.gateway import Gateway
from cost.ledger.store import LedgerStore
from cost.times import MINUTE_US, wall_us
from dashboards.web.cookie import COOKIE
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from gateway.database import make_engine
from proxy.settle.hurt.counting import Hurt, HurtCount
from proxy.settle.hurt.store import HurtStore
from tests.api.live.ledger import ended
from tests.processes import until
from tests.running_gateway import PEPPER, Running, model, running_gateway
from tests.signed_in import cookie_of, signed_in

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOME = "/dashboard/operations"
PAGES = (
    HOME,
    f"{HOME}/targets",
    f"{HOME}/targets/org/small",
    f"{HOME}/pools",
    f"{HOME}/pools/gpus",
    f"{HOME}/queues",
    f"{HOME}/decisions",
    f"{HOME}/classifier",
    f"{HOME}/config",
    f"{HOME}/config?defaults=yes&section=environment",
)
SCRIPTED = [{"kind": "scripted", "upstream_model": "x"}]
CANARY = "canary-4b1d0c7e"


@contextlib.asynccontextmanager
async def _trouble(folder: Path) -> AsyncIterator[Running]:
    """With a bought target, a pool whose replicas do not answer, a queue, and secrets in every place that has one."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with _started(folder, monkeypatch) as found:
            yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """For those who only look: a start waits three seconds for the replicas that do not answer."""
    async with _trouble(tmp_path_factory.mktemp("trouble")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def own(tmp_path: Path) -> AsyncIterator[Running]:
    """For one who changes something."""
    async with _trouble(tmp_path) as found:
        yield found


@contextlib.asynccontextmanager
async def _started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    for name in ("HOOK", "ENGINE", "METRICS"):
        monkeypatch.setenv(
            name, "whsec_" + "Y2FuYXJ5LTRiMWQwYzdlLWNhbmFyeS00YjFkMGM3ZQ==" if name == "HOOK" else CANARY
        )
    owned = {key: value for key, value in model("own", []).items() if key != "deployments"}
    replicas = [{"name": name, "url": f"http://127.0.0.1:{port}"} for name, port in (("one", 9), ("two", 10))]
    async with running_gateway(
        folder,
        [model("org/small", SCRIPTED), model("bad", [{"kind": "scripted", "upstream_model": "error-503"}]), owned],
        selfhosted={
            "pools": [
                {"name": "gpus", "engine": "vllm", "targets": ["own"], "api_key": "env:ENGINE", "replicas": replicas}
            ]
        },
        cost={
            "pools": [
                {
                    "name": "gpus",
                    "targets": ["own"],
                    "usd_per_gpu_hour": 3,
                    "up_since": "2026-01-01",
                    "seconds_per_million": {"input": 70, "output": 160},
                }
            ]
        },
        queues={"line": {"targets": ["org/small"], "tokens_in_flight": 1_000}},
        webhooks={
            "destinations": [
                {"name": "ops", "url": f"https://hooks.example.com/{CANARY}{'x1' * 12}", "secret": "env:HOOK"}
            ]
        },
        telemetry={"metrics_token": "env:METRICS"},
    ) as found:
        yield found


def gateway_of(running: Running) -> Gateway:
    found: Gateway = running.parts
    return found


async def test_each_page_shows_itself(running: Running) -> None:
    """To an operator, whole and as a part that refreshes, without any secret."""
    async with signed_in(running, role="operator") as browser:
        for path in PAGES:
            page = await browser.get(path)
            assert page.status == 200, path
            assert "<h1>" in page.text
            assert CANARY not in page.text
            assert "Y2FuYXJ5" not in page.text
            assert PEPPER not in page.text
        for path in (*PAGES[:6], f"{HOME}/classifier"):
            part = await browser.get(path, **{"hx-request": "true"})
            assert part.status == 200, path
            assert "<h1>" not in part.text
            assert 'id="' in part.text


async def test_the_operators_organisation_alone_sees_them(running: Running) -> None:
    """Somebody else's administrator is no operator."""
    await running.accounts.create_organisation("acme")
    roles: tuple[OrganisationRole, ...] = ("operator", "finance", "admin", "")
    async with aiohttp.ClientSession() as session:
        for organisation, role in ((each, role) for each in ("default", "acme") for role in roles):
            email = f"{role or 'nobody'}@{organisation}.example.com"
            cookie = await cookie_of(running, email, role=role, organisation_id=organisation)
            headers = {"cookie": f"{COOKIE}={cookie}"}
            for path in PAGES:
                async with session.get(running.url + path, headers=headers, allow_redirects=False) as reply:
                    assert reply.status == (200 if organisation == "default" and role else 403), (path, email)


async def test_what_is_not_there_is_not_found(running: Running) -> None:
    """Names out of an address are looked up, and told back as text."""
    async with signed_in(running, role="operator") as browser:
        for path in ("targets/none", "targets/<script>", "pools/none", "nothing"):
            page = await browser.get(f"{HOME}/{path}")
            assert page.status == 404, path
            assert "<script>" not in page.text.replace("<script nonce", "")


async def test_an_open_breaker_is_told_first(own: Running) -> None:
    """With what went wrong in our own words, on the overview, on the target's page and in the CSV."""
    breakers = own.live.breakers
    for _ in range(5):
        permit = breakers.try_acquire("org/small/main")
        assert permit is not None
        permit.record_fault("UpstreamUnavailable", 503, counted=True)
        permit.failure()
    async with signed_in(own, role="operator") as browser:
        overview = (await browser.get(HOME)).text
        assert (
            overview.index("Incidents (")
            < overview.index("It answered that it cannot serve (503), so no deployment is called")
            < overview.index("<h2>Models")
        )
        assert 'href="/dashboard/operations/targets/org/small"' in overview
        target = (await browser.get(f"{HOME}/targets/org/small")).text
        assert "It answered that it cannot serve." in target
        assert "503" in target
        file = await browser.get(f"{HOME}/targets?format=csv&table=deployments")
        assert file.headers["content-type"].startswith("text/csv")
        row = next(line for line in file.text.splitlines() if line.startswith("org/small/main"))
        assert "Open" in row
        assert "It answered that it cannot serve (503)" in row


async def test_a_wildcard_that_is_refused_is_shown(tmp_path: Path) -> None:
    """On its page, among the incidents and as a figure: what stands for many models is no less an upstream than one is."""
    entry = model(
        "many/*", [{"name": "main", "kind": "openai", "base_url": "http://127.0.0.1:9/v1", "upstream_model": "*"}]
    )
    del entry["prices"]
    sections = {"accounts": {"operator": "default"}, "cost": {"unpriced": "book"}}
    async with running_gateway(tmp_path, [model("one", SCRIPTED), entry], **sections) as running:
        permit = running.live.breakers.try_acquire("many/*/main")
        assert permit is not None
        permit.refused("key")
        async with signed_in(running, role="operator") as browser:
            target = (await browser.get(f"{HOME}/targets/many/*")).text
            assert "its provider refuses our key" in target
            told = (await browser.get(HOME)).text
            assert 'href="/dashboard/operations/targets/many/*"' in told
            assert "no price" not in told
        async with aiohttp.ClientSession(running.url) as session:

            async def is_told() -> bool:
                async with session.get("/metrics") as reply:
                    return 'weighbridge_breaker_state{deployment="many/*/main"} 2.0' in await reply.text()

            await until(is_told)


async def test_what_an_upstream_answered_is_remembered(own: Running) -> None:
    """A request that fails there leaves its kind and status, and nothing of the prompt or of the answer."""
    body = {"model": "bad", "messages": [{"role": "user", "content": CANARY}]}
    async with aiohttp.ClientSession(own.url) as session:
        headers = {"authorization": f"Bearer {own.key}"}
        async with session.post("/v1/chat/completions", json=body, headers=headers) as reply:
            assert reply.status >= 500
    faults = [fault for _, fault in own.live.breakers.describe("bad/main").faults]
    assert {(fault.kind, fault.status, fault.counted) for fault in faults} == {("UpstreamUnavailable", 503, True)}
    async with signed_in(own, role="operator") as browser:
        page = (await browser.get(f"{HOME}/targets/bad")).text
        assert "It answered that it cannot serve." in page
        assert CANARY not in page


async def test_tables_have_their_state_in_the_address(running: Running) -> None:
    """Sorting and searching are links and forms, also beside each other's."""
    async with signed_in(running, role="operator") as browser:
        found = (await browser.get(f"{HOME}/targets?targets.q=own&deployments.sort=-failures")).text
        table = found.partition('id="table-targets"')[2].partition('id="table-deployments"')[0]
        assert ">own<" in table
        assert ">org/small<" not in table
        config = (await browser.get(f"{HOME}/config?config.q=max_in_flight&defaults=yes")).text
        assert "server.max_in_flight" in config
        assert "server.port" not in config


async def test_an_operator_drains_and_takes_it_back(own: Running) -> None:
    """Both are in the audit log with who did it; the replica's own button changes."""
    async with signed_in(own, role="operator") as browser:
        done = await browser.post(f"{HOME}/pools/gpus/replicas/one/drain")
        assert (done.status, done.location) == (303, f"{HOME}/pools/gpus")
        assert 'aria-label="Undrain one"' in (await browser.get(f"{HOME}/pools/gpus")).text
        assert (await browser.post(f"{HOME}/pools/gpus/replicas/one/undrain")).status == 303
        assert 'aria-label="Drain one"' in (await browser.get(f"{HOME}/pools/gpus")).text
        assert (await browser.post(f"{HOME}/pools/gpus/replicas/none/drain")).status == 404
        assert (await browser.post(f"{HOME}/pools/none/replicas/one/drain")).status == 404
    entries = await gateway_of(own).identity.audit.page(Scope(organisation_id=None))
    told = [
        (each.action, each.object_id, each.actor_name) for each in reversed(entries) if each.object_kind == "replica"
    ]
    assert [each[:2] for each in told] == [("replica.drained", "gpus/one"), ("replica.undrained", "gpus/one")]
    assert {each[2] for each in told} == {"Ann"}


async def test_a_pool_says_whether_its_hours_were_worth_it(running: Running) -> None:
    """Hours bought, dollars paid and avoided, and the best fleet in hindsight: nobody used these."""
    async with signed_in(running, role="operator") as browser:
        text = (await browser.get(f"{HOME}/pools/gpus")).text
    for shown in ("Did the GPUs pay off?", "Hours bought", "Paid", "Avoided", "Best fixed fleet"):
        assert shown in text


async def test_who_only_reads_drains_nothing(own: Running) -> None:
    """Finance sees the pool without a button, and is refused when it sends the form all the same."""
    async with signed_in(own, role="finance") as browser:
        assert 'aria-label="Drain' not in (await browser.get(f"{HOME}/pools/gpus")).text
        assert (await browser.post(f"{HOME}/pools/gpus/replicas/one/drain")).status == 403
    assert not gateway_of(own).views.fleet.registry.ordered("gpus")  # type: ignore[union-attr]


async def test_the_same_over_the_api(own: Running) -> None:
    """GET /v1/operations tells what the pages show, to an administrator's key of the operators alone."""
    await LedgerStore(own.engine).insert(
        [ended(number, wall_us(), target_id="org/small", status=502, served=False) for number in range(30)]
    )
    minute_us = wall_us() // MINUTE_US * MINUTE_US
    refused = Hurt(minute_us, "default", "team_a", "key_1", "org/small", ("org/small",), "refused")
    await HurtStore(own.engine).keep("worker", [HurtCount(refused, 30)])
    pepper = peppers(
        load(own.config_path, Environment(data_dir=own.config_path.parent, pepper=PEPPER)),
        Environment(pepper=PEPPER),
    )[0]
    key = await own.accounts.create_key("team_a", "ops", pepper, role="admin")

    async def both_have_said_that_they_live() -> bool:
        # The worker's journal shows it, in the drain's own time.
        return len((await in_database(own.engine, ""))["processes"]) == 2

    await until(both_have_said_that_they_live)
    async with aiohttp.ClientSession(own.url) as session:
        async with session.get("/v1/operations", headers={"authorization": f"Bearer {own.key}"}) as reply:
            assert reply.status == 403
        async with session.get("/v1/operations", headers={"authorization": f"Bearer {key.plaintext}"}) as reply:
            assert reply.status == 200
            text = await reply.text()
            told = await reply.json()
    assert CANARY not in text
    assert told["object"] == "operations"
    (errors,) = [each for each in told["incidents"] if each["subject"] == "org/small"]
    assert (errors["kind"], errors["severity"], errors["requests"], errors["teams"]) == ("errors", "bad", 30, 1)
    small = next(each for each in told["targets"] if each["target_id"] == "org/small")
    assert (small["recent"]["attempts"], small["recent"]["failed_share"]) == (30, 1.0)
    assert [each["name"] for each in told["queues"]] == ["line"]
    assert told["stores"]["database"]["answers"]
    assert told["stores"]["redis"] == {
        "configured": False,
        "answers": False,
        "place": None,
        "live": None,
        "problem": None,
    }
    # The control plane and its worker.
    assert sorted(each["is_this"] for each in told["stores"]["processes"]) == [False, True]


async def test_it_is_told_also_while_the_database_is_away(running: Running) -> None:
    """What this process knows by itself is there, what only the database knows is unknown, and that it is away comes first."""
    engine = make_engine("postgresql://nobody@127.0.0.1:1/none")
    gateway = gateway_of(running)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(engine.dispose)
        views = gateway.views._replace(operations=open_operations(engine, stack))
        away = gateway._replace(database=engine, views=views)
        told = await operations_snapshot(away)
    assert told["incidents"][0]["subject"] == "database"
    assert told["incidents"][0]["severity"] == "bad"
    assert told["recent"]["failed_share"] is None
    assert told["spend"]["spent_nanousd"] is None
    assert told["stores"]["webhooks"]["waiting"] is None
    assert {each["target_id"] for each in told["targets"]} == {"org/small", "bad", "own"}
