"""Every page of the dashboards over ten million ledger rows, as each role: how long the server takes, and how heavy it is.

    python -m benchmarks.pages [--database sqlite|postgresql] [--rows 10000000] [--audit 1000000] [--views 2000]
                               [--keys 10000] [--teams 2000] [--models 300]

The sample's thirty days of ten teams (`gateway.demo.history`) are copied within the database until ledger, weighings and
audit log are as large as asked; roll-ups and true-ups are made anew by the gateway's own code; and a gateway serves it
as a process of its own. Each role signs in and opens every page that it may, one after the other. A page's time is what
a client on the same machine waits for its last byte on a kept connection: the server's time and a little more; the
processor time beside it is the whole control plane's. SQLite's database is kept in build/pages and found the next
time. Exit status 1 means that a page did not answer, or that a route of a page was left out; not that it was slow.
"""

import argparse
import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import yaml
from sqlalchemy import Connection, Index, Table, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.figures import machine, percentile
from cost.budgets.grants import MAX_BUDGETS
from cost.budgets.store import MAX_OF_ORGANISATION
from cost.fleet.cost_adjustment import TrueUpRounds, TrueUpStore
from cost.ledger.rebuild import rebuild
from cost.ledger.store import LedgerStore
from cost.times import DAY_US, HOUR_US, MINUTE_US, day_of, wall_us
from dashboards.ui.rendering import assets
from gateway.configuration.environment import read_environment
from gateway.configuration.settings import load
from gateway.database import make_engine, metadata, migrate
from gateway.demo.company import MINI, ORGANISATION, SHOWN, TEAMS
from gateway.demo.history import DAYS
from gateway.demo.sample_config import Addresses, write_sample_config
from proxy.settle.refusals.store import KEPT_US as REFUSALS_KEPT_US
from proxy.settle.traffic.store import KEPT_US as TRAFFIC_KEPT_US
from proxy.settle.traffic.store import MINUTES_FOR_US, QUARTER_US
from proxy.settle.traffic.waits import RANGES
from tests.browser.serving import serving, write_history
from tests.browser.site import PASSWORD, Site
from tests.dashboards.pages.routes_table import RIGHTS
from tests.postgres import postgres_binaries, running_postgres

AIM_MS: Final = 100
COLD_MS: Final = 500
MOST_BYTES: Final = 200_000
MOST_PAGE_BYTES: Final = 150_000
_BASE_REQUESTS: Final = 40_000
_WEIGHING_COPIES: Final = 10
_TIMES: Final = 20
_WARM: Final = 1
_BATCH: Final = 5_000
SPREAD: Final = "search"
"""The team whose requests are spread over the added teams."""
_STRIDE: Final = 7_919
_END_USERS: Final = 5_000
_INCIDENTS: Final = 360
_INCIDENTS_EVERY_US: Final = 6 * HOUR_US
_HURT: Final = 20
_PROCESSES: Final = 8
_OTHERS: Final = 9
"""Other organisations."""
_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")
_REFUSED: Final = frozenset({403, 404})
_CSRF: Final = re.compile(r'name="csrf" value="([^"]+)"')
_ASSET: Final = re.compile(r'(?:src|href)="(/dashboard/static/[^"]+\.(?:js|css))"')
_FILE: Final = "format=csv"
_LINK: Final = re.compile(r'href="(/dashboard/[^"#?]+)"')

PAGES: Final = (
    "/dashboard/teams",
    "/dashboard/teams/support",
    f"/dashboard/teams/support?from={day_of(wall_us() - 89 * DAY_US)}&to={day_of(wall_us())}",
    "/dashboard/teams/support/savings",
    "/dashboard/teams/support/latest",
    "/dashboard/teams/support/requests",
    "/dashboard/teams/support/requests?outcome=failed",
    "/dashboard/teams/support/requests?outcome=escalated&tier=batch",
    "/dashboard/teams/support/requests?tag=nothing-has-this-tag",
    "/dashboard/teams/support/requests?sort=-cost",
    "/dashboard/teams/support/requests?sort=-duration&page=3",
    "/dashboard/teams/support/requests?status=5xx&slower=2",
    "/dashboard/teams/support/requests?dearer=0.01&target=gpt-4o&sort=-tokens",
    "/dashboard/teams/support/requests?outcome=refused",
    "/dashboard/teams/support/requests?format=csv",
    "/dashboard/teams/support/requests?q=user%3Anobody-is-called-so",
    "/dashboard/teams/support/requests?q=nothing-is-called-so",
    "/dashboard/teams/support/requests?q=status%3A5xx+latency%3E2s",
    "/dashboard/teams/support/spend",
    "/dashboard/teams/support/spend?last=3h",
    "/dashboard/teams/support/spend?by=tag&of=tag",
    "/dashboard/teams/support/spend?by=end_user&of=end_user",
    "/dashboard/teams/support/end-users",
    "/dashboard/teams/support/end-users?q=customer-7",
    "/dashboard/teams/support/incidents",
    "/dashboard/finance/spend",
    "/dashboard/finance/spend?by=key&last=24h",
    "/dashboard/teams/support/models",
    "/dashboard/teams/support/playground",
    "/dashboard/teams/support/alerts",
    "/dashboard/teams/support/policy",
    "/dashboard/teams/support/guard",
    "/dashboard/teams/support/caching",
    "/dashboard/teams/support/keys",
    "/dashboard/teams/support/keys/new",
    "/dashboard/teams/support/budgets",
    "/dashboard/teams/support/members",
    "/dashboard/finance",
    "/dashboard/finance?team=support",
    "/dashboard/finance/month",
    "/dashboard/budgets",
    "/dashboard/teams/support/budgets?options=budget_of&typed=service-99",
    "/dashboard/finance/showback?options=team&typed=99",
    "/dashboard/calendar",
    "/dashboard/finance/showback",
    "/dashboard/finance/showback?by=key",
    "/dashboard/finance/prices",
    "/dashboard/finance/prices/gpt-4o-mini",
    "/dashboard/finance/reconciliation",
    "/dashboard/finance/exports",
    "/dashboard/finance/reports",
    "/dashboard/operations",
    "/dashboard/operations/incidents",
    "/dashboard/incidents",
    "/dashboard/operations/hour",
    "/dashboard/operations/traffic",
    "/dashboard/operations/traffic?span=day",
    "/dashboard/operations/measurements",
    "/dashboard/operations/targets",
    "/dashboard/operations/targets/gpt-4o",
    "/dashboard/operations/pools",
    "/dashboard/operations/pools/l40s",
    "/dashboard/operations/rollouts",
    "/dashboard/operations/rollouts/l40s",
    "/dashboard/operations/queues",
    "/dashboard/operations/decisions",
    "/dashboard/operations/classifier",
    "/dashboard/operations/config",
    "/dashboard/alerts",
    "/dashboard/guard",
    "/dashboard/audit",
    "/dashboard/audit?action=key.created",
    "/dashboard/audit?actor=nobody-is-called-so",
    "/dashboard/audit?object=nothing-is-called-so",
    "/dashboard/audit?team=support&before=500000",
    "/dashboard/people",
    "/dashboard/api",
    "/dashboard/api?q=rotate",
    "/dashboard/api/batch",
    "/dashboard/ask",
    "/dashboard/batches",
    "/dashboard/account",
)
FOUND_ON: Final = (
    ("/dashboard/teams/support/requests", "/dashboard/teams/support/requests/req_"),
    ("/dashboard/teams/support/keys", "/dashboard/teams/support/keys/key_"),
    ("/dashboard/teams/support/budgets", "/dashboard/teams/support/budgets/"),
    ("/dashboard/teams/support/models", "/dashboard/teams/support/models/"),
    ("/dashboard/people", "/dashboard/people/person_"),
    ("/dashboard/budgets", "/dashboard/budgets/"),
    ("/dashboard/operations/incidents", "/dashboard/operations/incidents/inc_"),
    ("/dashboard/audit", "/dashboard/audit/"),
)
"""Pages with an object in their address are found on the page that lists them: where, and how their addresses begin."""
NOT_PAGES: Final = frozenset(
    {
        "/dashboard",
        "/dashboard/api/openapi.json",
        "/dashboard/finance/exports/completions.json",
        "/dashboard/finance/exports/costs.json",
        "/dashboard/finance/exports/embeddings.json",
        "/dashboard/finance/exports/focus.csv",
        "/dashboard/finance/exports/usage",
        "/dashboard/finance/reports/made",
        "/dashboard/finance/reports/written",
        "/dashboard/operations/decisions/stream",
        "/dashboard/operations/measurements/{measurement_id}",
        "/dashboard/teams/{team_id}/batches/{batch_id}",
        "/dashboard/teams/{team_id}/batches/{batch_id}/files/{kind}",
    }
)
"""Files of any length, a stream that does not end, what only leads elsewhere, and pages of what the sample has none of."""


class PageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One page, opened some times by one role."""

    path: str
    role: str
    status: int
    first_ms: float
    """Time of this role's first view of it; the first role's is the first view at all."""
    median_ms: float
    p90_ms: float
    most_ms: float
    cpu_ms: float
    """Processor time of the whole control plane for one view."""
    page_bytes: int


class Weight(msgspec.Struct, frozen=True):
    """The weight of a first load beside the page itself."""

    files: int
    raw_bytes: int
    sent_bytes: int
    """As a browser gets them, which takes gzip."""


class Memory(msgspec.Struct, frozen=True):
    """The control plane's resident memory, before and after many views of all pages."""

    views: int
    before_mb: float
    half_mb: float
    after_mb: float


class _Process:
    """A process as the system tells of it."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def cpu_ms(self) -> float:
        """Return the processor time of all its threads."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1_000 / _TICKS_A_S

    def resident_mb(self) -> float:
        line = next(each for each in (self._folder / "status").read_text().splitlines() if each.startswith("VmRSS"))
        return int(line.split()[1]) / 1_024


def routes_left_out(paths: Sequence[str]) -> list[str]:
    """Return the routes of pages that none of these addresses belongs to."""
    known = [path.partition("?")[0] for path in paths]
    wanted = {
        route.partition(" ")[2] for route in RIGHTS if route.startswith("GET /dashboard")
    } - NOT_PAGES  # those are no pages
    return sorted(route for route in wanted if not any(_fits(route, path) for path in known))


def _fits(route: str, path: str) -> bool:
    pattern = re.sub(r"{[a-z_]+}", "[^/]+", re.sub(r"{[a-z_]+:path}", ".+", route))
    return re.fullmatch(pattern, path) is not None


def multiplied(
    connection: Connection, rows: int, audit: int, keys: int, teams: int, progress: Callable[[str], None]
) -> None:
    """Copy the rows of callers until the tables are as large as asked. In the copies, one team's requests are those of all
    its added keys and of many end users, and another's are those of the added teams.
    """
    ledger = metadata.tables["ledger_entry"]
    moved = {
        "request_id": "'req_' || substr(CAST(10000 + CAST(:copy AS BIGINT) AS VARCHAR), 2) || substr(request_id, 5)",
        "at_us": "at_us - CAST(:copy AS BIGINT)",
    }
    alone, shared = _shares(keys, teams)
    spread = {
        **moved,
        "team_id": f"CASE WHEN team_id = '{SPREAD}' THEN {_nth('team_more_', alone)} ELSE team_id END",
        "key_id": f"CASE team_id WHEN '{SPREAD}' THEN {_nth('key_more_', alone)}"
        f" WHEN 'support' THEN {_nth('key_more_', shared, alone)} ELSE key_id END",
        "end_user": f"CASE team_id WHEN 'support' THEN {_nth('customer-', _END_USERS)} ELSE end_user END",
    }
    whole = _count(connection, "ledger_entry")
    base = int(connection.scalar(text("SELECT count(*) FROM ledger_entry WHERE boot_id <> 'books'")) or 0)
    copies = max(0, -(-(rows - whole) // base))
    with _without_indexes(connection, ledger):
        connection.execute(
            text(
                "CREATE TEMPORARY TABLE base AS SELECT *, dense_rank() OVER (ORDER BY request_id) AS nth "
                "FROM ledger_entry WHERE boot_id <> 'books'"
            )
        )
        for copy in range(1, copies + 1):
            connection.execute(text(_copying(ledger, spread, "base")), {"copy": copy})
            if copy % 25 == 0:
                progress(f"{whole + copy * base:,} ledger rows")
        connection.execute(text("DROP TABLE base"))
    weighings = metadata.tables["weighing"]
    connection.execute(text("CREATE TEMPORARY TABLE weighed AS SELECT * FROM weighing"))
    for copy in range(1, min(copies, _WEIGHING_COPIES) + 1):
        connection.execute(text(_copying(weighings, moved, "weighed")), {"copy": copy})
    connection.execute(text("DROP TABLE weighed"))
    progress(f"{_count(connection, 'weighing'):,} weighings")
    _audited(connection, audit)
    progress(f"{_count(connection, 'audit_entry'):,} audit entries")


def _shares(keys: int, teams: int) -> tuple[int, int]:
    """Return how many of the added keys are an added team's only one, and how many are all of one team."""
    alone = max(1, min(teams, keys // 2))
    return alone, max(1, keys - alone)


def _nth(beginning: str, of: int, first: int = 0) -> str:
    """Return a name in SQL that depends on the request and the copy alone."""
    return f"'{beginning}' || CAST({first} + (nth + CAST(:copy AS BIGINT) * {_STRIDE}) % {of} AS VARCHAR)"


def grown(connection: Connection, keys: int, teams: int) -> None:
    """Add teams with a member and a key each, keys of one team, as many budgets of these as may be, and closed incidents."""
    alone, _ = _shares(keys, teams)
    owners = [f"team_more_{number}" if number < alone else "support" for number in range(keys)]
    now_us = wall_us()
    closed = [now_us - age * _INCIDENTS_EVERY_US - HOUR_US for age in range(_INCIDENTS)]
    _more(connection, "team", "team_id", [{"team_id": f"team_more_{n}", "name": f"Team {n}"} for n in range(teams)])
    _more(
        connection,
        "api_key",
        "key_id",
        [
            {"key_id": f"key_more_{n}", "team_id": owner, "name": f"service-{n}", "digest": f"{n}", "revoked_at": None}
            for n, owner in enumerate(owners)
        ],
    )
    _more(
        connection,
        "person",
        "person_id",
        [
            {
                "person_id": f"person_more_{n}",
                "email": f"person-{n}@northwind.example",
                "name": f"Person {n}",
                "role": "",
            }
            for n in range(teams)
        ],
    )
    _more(
        connection,
        "team_member",
        "person_id",
        [{"person_id": f"person_more_{n}", "team_id": f"team_more_{n}"} for n in range(teams)],
    )
    _more(
        connection,
        "budget",
        "budget_id",
        _budgets(keys, teams),
    )
    incidents = metadata.tables["incident"]
    shares = metadata.tables["incident_share"]
    connection.execute(shares.delete())
    connection.execute(incidents.delete())
    connection.execute(
        insert(incidents),
        [
            {
                "incident_id": f"inc_{n:08x}",
                "place": f"target {MINI}",
                "places": f"target {MINI}",
                "targets": MINI,
                "kind": "failing",
                "severity": "warning",
                "subject": MINI,
                "text": f"{MINI} answered 12 of 100 requests with an error.",
                "advice": "Look at its provider's status page.",
                "href": f"/dashboard/operations/targets/{MINI}",
                "also": "",
                "opened_us": at_us,
                "seen_us": at_us + 10 * MINUTE_US,
                "seen_by": "made up",
                "closed_us": at_us + 20 * MINUTE_US,
                "requests": 12 * _HURT,
                "refused": 0,
                "teams": _HURT,
                "keys": _HURT,
                "part_of": "",
            }
            for n, at_us in enumerate(closed)
        ],
    )
    connection.execute(
        insert(shares),
        [
            {
                "incident_id": f"inc_{n:08x}",
                "organisation_id": ORGANISATION,
                "team_id": "support" if place == 0 else f"team_more_{place}",
                "model": "auto",
                "requests": 12,
                "refused": 0,
                "keys": 1,
            }
            for n in range(_INCIDENTS)
            for place in range(_HURT)
        ],
    )


def _budgets(keys: int, teams: int) -> list[dict[str, Any]]:
    """Return as many budgets as there may be: of the organisation for teams and keys alike, and all others of other organisations."""
    places = [
        f"{scope}_more_{n}"
        for scope, number in (("team", teams), ("key", min(keys, MAX_BUDGETS - 100 - teams)))
        for n in range(number)
    ]
    half = (MAX_OF_ORGANISATION - 100) // 2
    own = {*places[: min(half, teams)], *places[teams : teams + half // 2], *places[len(places) - half // 2 :]}
    return [
        {
            "budget_id": f"budget_{place}",
            "organisation_id": ORGANISATION if place in own else f"other-{number % _OTHERS}",
            "scope": place.partition("_")[0],
            "scope_id": place,
            "kind": "soft",
        }
        for number, place in enumerate(places)
    ]


def _more(connection: Connection, name: str, column: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows like the table's first one, where they are not there yet."""
    table = metadata.tables[name]
    ours = table.c.organisation_id == ORGANISATION if "organisation_id" in table.c else table.c[column] != ""
    first = connection.execute(select(table).where(ours).order_by(table.c[column]).limit(1)).mappings().one()
    known = set(connection.scalars(select(table.c[column])))
    added = [{**first, **row} for row in rows if row[column] not in known]
    for place in range(0, len(added), _BATCH):
        connection.execute(insert(table), added[place : place + _BATCH])


def with_models(config: Path, models: int) -> None:
    """Add models that `auto` may choose to the configuration, until there are as many as asked: each with a price of its own, and
    each third one measured alike.
    """
    told = yaml.safe_load(config.read_text())
    known = told["providers"]["models"]
    first = next(each for each in known if each["model_id"] == MINI)
    abilities = [each["ability"] for each in known if "ability" in each]
    for number in range(len(known), models):
        prices = {"input": f"{0.1 + number / 100:.2f}", "output": f"{0.5 + number / 30:.2f}"}
        known.append(
            {
                **deepcopy(first),
                "model_id": f"model-{number}",
                "ability": abilities[number % len(abilities)],
                "prices": {**prices, "effective_from": "2024-07-18"},
            }
        )
        told["policy"]["auto"].append(f"model-{number}")
    config.write_text(yaml.safe_dump(told, sort_keys=False))


def _count(connection: Connection, table: str) -> int:
    return int(connection.scalar(select(func.count()).select_from(metadata.tables[table])) or 0)


def _audited(connection: Connection, audit: int) -> None:
    """Repeat the same entries, evenly over four years. Their chain is no chain; pages do not look at it."""
    base = _count(connection, "audit_entry")
    moved = {"number": "number + CAST(:copy AS BIGINT) * CAST(:base AS BIGINT)"}
    copies = max(0, -(-(audit - base) // base))
    table = metadata.tables["audit_entry"]
    connection.execute(text("CREATE TEMPORARY TABLE told AS SELECT * FROM audit_entry"))
    for copy in range(1, copies + 1):
        connection.execute(text(_copying(table, moved, "told")), {"copy": copy, "base": base})
    connection.execute(text("DROP TABLE told"))
    last = base * (copies + 1)
    begun_us = wall_us() - 4 * 365 * DAY_US
    spread = text("UPDATE audit_entry SET at_us = CAST(:begun AS BIGINT) + number * CAST(:step AS BIGINT)")
    connection.execute(spread, {"begun": begun_us, "step": 4 * 365 * DAY_US // last})
    connection.execute(metadata.tables["audit_head"].update().values(number=last))


def _copying(table: Table, moved: Mapping[str, str], source: str) -> str:
    names = [column.name for column in table.columns]
    chosen = ", ".join(moved.get(name, name) for name in names)
    return f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {chosen} FROM {source}"  # noqa: S608  Our own names.


@contextlib.contextmanager
def _without_indexes(connection: Connection, table: Table) -> Iterator[None]:
    """Drop a table's indexes for the block: an index that is made at the end is made in order."""
    indexes: list[Index] = sorted(table.indexes, key=lambda each: str(each.name))
    for index in indexes:
        index.drop(connection)
    yield
    for index in indexes:
        index.create(connection)


async def billed_again(engine: AsyncEngine, config: Path) -> None:
    """Rebuild the roll-ups as `weighbridge ledger rebuild` does, and post the nights' true-ups for that much work."""
    today_us = wall_us() - wall_us() % DAY_US
    start_us = today_us - (DAYS + 2) * DAY_US
    await rebuild(engine, start_us, today_us + DAY_US)
    pools = load(config, read_environment(), secrets_from=None).cost.pools
    rounds = TrueUpRounds(TrueUpStore(engine, LedgerStore(engine)), lambda: pools, wall_us)
    for day_us in range(start_us, today_us, DAY_US):
        for pool in pools:
            await rounds.true_up(pool.name, day_of(day_us))


async def copied(source: AsyncEngine, to: AsyncEngine) -> None:
    """Copy every row of every table, into another kind of database."""
    async with source.connect() as reading, to.begin() as writing:
        for table in metadata.sorted_tables:
            await writing.execute(table.delete())
            found = await reading.stream(select(table))
            async for some in found.mappings().partitions(_BATCH):
                await writing.execute(insert(table), [dict(row) for row in some])


async def filled(
    engine: AsyncEngine, config: Path, arguments: argparse.Namespace, progress: Callable[[str], None]
) -> None:
    """Fill the database as it is measured."""
    async with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            await connection.exec_driver_sql("PRAGMA cache_size = -1000000")
        await connection.run_sync(
            multiplied, arguments.rows, arguments.audit, arguments.keys, arguments.teams, progress
        )
    progress("indexes made")
    await billed_again(engine, config)
    progress("rolled up and trued up")
    if engine.dialect.name == "postgresql":
        # As its own housekeeping does after a while. SQLite has no statistics unless somebody asks for them; nobody does.
        async with engine.connect() as plain:
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text("VACUUM ANALYZE"))


async def counted(engine: AsyncEngine, now_us: int) -> None:
    """Write the processes' counts of traffic and refusals, up to now: minutes of the last two hours from eight of them, a month
    of quarters, three months of hours, and the requests that were refused last.
    """
    minute, hour = now_us - now_us % MINUTE_US, now_us - now_us % HOUR_US
    quarter = now_us - now_us % QUARTER_US - MINUTES_FOR_US
    figures = {
        "mark": 1,
        "requests": 900,
        "errors": 9,
        "refusals": 30,
        "output_tokens": 200_000,
        "priced_tokens": 700_000,
        "cost_nanousd": 400_000_000,
        "waiting": 4,
        "ttft": str([1 + place % 7 for place in range(RANGES)]),
    }
    traffic = [
        {"span": "minute", "start_us": minute - age * MINUTE_US, "boot_id": f"boot_{process}", **figures}
        for age in range(MINUTES_FOR_US // MINUTE_US)
        for process in range(_PROCESSES)
    ]
    quarters = TRAFFIC_KEPT_US // QUARTER_US
    traffic += [
        {"span": "quarter", "start_us": quarter - age * QUARTER_US, "boot_id": "", **figures} for age in range(quarters)
    ]
    refused = [
        {
            "span": span,
            "start_us": start_us,
            "boot_id": boot_id,
            "organisation_id": ORGANISATION,
            "team_id": team.team_id,
            "key_id": f"key_{team.team_id}",
            "model": "auto",
            "reason": reason,
            "status": status,
            "refusals": 5,
        }
        for span, start_us, boot_id in (
            *(("hour", hour - age * HOUR_US, "") for age in range(3, REFUSALS_KEPT_US // HOUR_US)),
            *(("minute", minute - age * MINUTE_US, "boot_0") for age in range(60)),
        )
        for team in TEAMS
        for reason, status in (("rate_limited", 429), ("budget_exceeded", 402), ("queue_full", 429))
    ]
    requests = [
        {
            "team_id": team.team_id,
            "request_id": f"req_refused_{number}",
            "at_us": now_us - number * MINUTE_US,
            "organisation_id": ORGANISATION,
            "key_id": f"key_{team.team_id}",
            "model": "auto",
            "reason": "rate_limited",
            "status": 429,
            "message": "The limit of the key is used up.",
        }
        for team in TEAMS
        for number in range(2_000)
    ]
    async with engine.begin() as connection:
        for name, rows in (("traffic", traffic), ("refusal_count", refused), ("refused_request", requests)):
            await connection.execute(metadata.tables[name].delete())
            for place in range(0, len(rows), _BATCH):
                await connection.execute(insert(metadata.tables[name]), rows[place : place + _BATCH])


class Reader:
    """Somebody who is signed in and opens pages on one kept connection."""

    def __init__(self, site: Site, session: aiohttp.ClientSession, process: _Process, role: str) -> None:
        self._site = site
        self._session = session
        self._process = process
        self._role = role

    async def sign_in(self, email: str) -> None:
        """Sign in as the form does."""
        _, page, _ = await self.get("/dashboard/sign-in")
        found = _CSRF.search(page)
        fields = {"email": email, "password": PASSWORD, "csrf": found[1] if found else ""}
        headers = {"sec-fetch-site": "same-origin"}
        url = f"{self._site.url}/dashboard/sign-in"
        async with self._session.post(url, data=fields, headers=headers, allow_redirects=False) as reply:
            cookies = [each.split(";")[0] for each in reply.headers.getall("set-cookie", [])]
            assert cookies, f"signing in answered {reply.status}"
            self._session.headers["cookie"] = "; ".join(cookies)

    async def get(self, path: str) -> tuple[int, str, float]:
        """Return the status, text and milliseconds."""
        begun = time.perf_counter()
        async with self._session.get(self._site.url + path, allow_redirects=False) as reply:
            body = await reply.read()
            spent_ms = (time.perf_counter() - begun) * 1_000
            return reply.status, body.decode(), spent_ms

    async def measure(self, path: str, times: int) -> PageFigures:
        """Measure one page, some times in a row. A page that the role may not see is asked for once."""
        status, page, first_ms = await self.get(path)
        spent = [first_ms]
        cpu_ms = 0.0
        if status not in _REFUSED:
            for _ in range(_WARM):
                await self.get(path)
            begun_ms = self._process.cpu_ms()
            spent = [(await self.get(path))[2] for _ in range(times)]
            cpu_ms = (self._process.cpu_ms() - begun_ms) / times
        return PageFigures(
            path=path,
            role=self._role,
            status=status,
            first_ms=first_ms,
            median_ms=percentile(spent, 0.5),
            p90_ms=percentile(spent, 0.9),
            most_ms=max(spent),
            cpu_ms=cpu_ms,
            page_bytes=len(page.encode()),
        )

    async def found_pages(self) -> list[str]:
        """Find the page of one object of each kind."""
        paths = []
        for listing, beginning in FOUND_ON:
            _, page, _ = await self.get(listing)
            ends = r"\d+" if beginning.endswith("audit/") else r"[^/]+"
            links = (link for link in _LINK.findall(page) if re.fullmatch(re.escape(beginning) + ends, link))
            paths += [link for link in links if not link.endswith("/limits")][:1]
        return paths


async def weight_of(site: Site, page: str) -> Weight:
    """Return the bytes of the script and style that a page names, plain and as sent."""
    named = [path for path in dict.fromkeys(_ASSET.findall(page)) if path in assets()]
    sent = 0
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        for path in named:
            async with session.get(site.url + path, headers={"accept-encoding": "gzip, deflate, br"}) as reply:
                sent += len(await reply.read())
    return Weight(len(named), sum(len(assets()[path].body) for path in named), sent)


async def opened(
    site: Site, process: _Process, times: int, views: int, progress: Callable[[str], None]
) -> tuple[list[PageFigures], Weight, Memory]:
    """Open every page as every role; measure the size of the first one, and the memory that many views leave behind."""
    figures: list[PageFigures] = []
    paths: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for person in SHOWN:
            session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1), cookie_jar=aiohttp.DummyCookieJar())
            )
            role = person.role or f"team {dict(person.teams)['support']}"
            readers.append(Reader(site, session, process, role))
            await readers[-1].sign_in(person.email)
        for reader in readers:
            paths = paths or [*PAGES, *await reader.found_pages()]
            for path in paths:
                told = await reader.measure(path, times)
                figures.append(told)
                if told.status not in _REFUSED:
                    progress(
                        f"{told.median_ms:8.1f} ms  most {told.most_ms:7.1f}  cpu {told.cpu_ms:6.1f}  "
                        f"first {told.first_ms:7.1f}  {told.role:12} {told.status} {path}"
                    )
        shown = [path for path in paths if _FILE not in path]
        memory = await _many(readers[0], process, shown, views)
        _, page, _ = await readers[0].get("/dashboard/teams/support")
        return figures, await weight_of(site, page), memory


async def _many(reader: Reader, process: _Process, paths: Sequence[str], views: int) -> Memory:
    """Open all pages in turn. Every page was looked at before, so nothing is loaded for the first time."""
    marks = [process.resident_mb()]
    for number in range(views):
        await reader.get(paths[number % len(paths)])
        if number + 1 == views // 2:
            marks.append(process.resident_mb())
    return Memory(views, marks[0], marks[-1], process.resident_mb())


def _control_plane_pid() -> int:
    """Return the process that renders pages: the child of the child that serves."""
    return _child_of(_child_of(os.getpid(), b"serve"), b"gateway.process.control")


def _child_of(parent_pid: int, argument: bytes) -> int:
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == parent_pid and argument in (folder / "cmdline").read_bytes().split(b"\0"):
                return int(folder.name)
    raise AssertionError(f"the process with {argument.decode()} is not found")


async def _prepared(
    folder: Path, url: str | None, arguments: argparse.Namespace, progress: Callable[[str], None]
) -> tuple[int, int]:
    """Fill the database unless it is filled; return the rows of the ledger and of the audit log."""
    config = write_sample_config(folder, Addresses(), day_of(wall_us() - DAYS * DAY_US))
    with_models(config, arguments.models)
    engine = make_engine(url or f"sqlite:///{folder}/sample.sqlite")
    try:
        if url is not None:
            await migrate(engine)
            base = make_engine(f"sqlite:///{folder}/base.sqlite")
            await copied(base, engine)
            await base.dispose()
            progress("the sample is copied")
        async with engine.begin() as connection:
            await connection.run_sync(grown, arguments.keys, arguments.teams)
        if url is not None or not (folder / "filled").exists():
            await filled(engine, config, arguments, progress)
            (folder / "filled").touch()
        # These are read by their age, so they are new each time.
        await counted(engine, wall_us())
        async with engine.connect() as connection:
            ledger, log = [await connection.run_sync(_count, table) for table in ("ledger_entry", "audit_entry")]
        return ledger, log
    finally:
        await engine.dispose()


def _print(figures: Sequence[PageFigures], weight: Weight, memory: Memory, rows: tuple[int, int], times: int) -> None:
    shown = [each for each in figures if each.status not in _REFUSED]
    # A file is no page: it is written in a thread, and as long as it is asked for.
    pages = [each for each in shown if _FILE not in each.path]
    slow = sorted({each.path for each in pages if each.median_ms > AIM_MS})
    heavy = sorted({each.path for each in pages if each.page_bytes > MOST_PAGE_BYTES})
    cold = sorted({each.path for each in pages if each.first_ms > COLD_MS})
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"\n{rows[0]:,} ledger rows, {rows[1]:,} audit entries; {times} views each; {load}")
    print(
        f"{'median ms':>10} {'p90':>8} {'most':>8} {'first':>8} {'cpu ms':>7} {'KB':>7}  page (by the role that waits longest)"
    )
    for path in dict.fromkeys(each.path for each in shown):
        each = max((one for one in shown if one.path == path), key=lambda one: one.median_ms)
        print(
            f"{each.median_ms:>10.1f} {each.p90_ms:>8.1f} {each.most_ms:>8.1f} {each.first_ms:>8.1f} {each.cpu_ms:>7.1f} "
            f"{each.page_bytes / 1_000:>7.1f}  {path} ({each.role})"
        )
    print(f"\npages slower than {AIM_MS} ms at the median, to any role: {', '.join(slow) or 'none'}")
    print(f"pages of more than {MOST_PAGE_BYTES // 1_000} KB: {', '.join(heavy) or 'none'}")
    print(f"pages whose first view by any role took more than {COLD_MS} ms: {', '.join(cold) or 'none'}")
    print(
        f"script and style of a first load: {weight.raw_bytes:,} bytes in {weight.files} files, {weight.sent_bytes:,} as "
        f"sent (aim: {MOST_BYTES:,})"
    )
    print(
        f"resident memory over {memory.views:,} views: {memory.before_mb:.0f} MB before, {memory.half_mb:.0f} after half, "
        f"{memory.after_mb:.0f} after all"
    )


async def _measured(arguments: argparse.Namespace, url: str | None, progress: Callable[[str], None]) -> bool:
    folder: Path = arguments.folder.resolve()
    before = machine()
    rows = await _prepared(folder, url, arguments, progress)
    progress(f"{rows[0]:,} ledger rows, {rows[1]:,} audit entries")
    with serving(folder, url, lambda config: with_models(config, arguments.models)) as site:
        process = _Process(_control_plane_pid())
        figures, weight, memory = await opened(site, process, arguments.times, arguments.views, progress)
    _print(figures, weight, memory, rows, arguments.times)
    left_out = routes_left_out([each.path for each in figures if each.status not in _REFUSED])
    if left_out:
        print(f"routes of pages that were not opened: {', '.join(left_out)}")
    report: dict[str, Any] = {
        "machine": before,
        "database": arguments.database,
        "rows": rows[0],
        "audit_entries": rows[1],
        "pages": [each for each in figures if each.status not in _REFUSED],
        "weight": weight,
        "memory": memory,
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return not left_out and all(each.status in {200, *_REFUSED} for each in figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--rows", type=int, default=10_000_000, help="ledger rows")
    parser.add_argument("--audit", type=int, default=1_000_000, help="audit entries")
    parser.add_argument(
        "--keys", type=int, default=10_000, help="added keys: one for each added team, the others of one team"
    )
    parser.add_argument("--teams", type=int, default=2_000, help="added teams, each with a member")
    parser.add_argument("--models", type=int, default=300, help="configured models")
    parser.add_argument("--times", type=int, default=_TIMES, help="views of each page by each role")
    parser.add_argument("--views", type=int, default=2_000, help="views after which memory is looked at")
    parser.add_argument("--folder", type=Path, default=Path("build/pages"), help="where the database is kept")
    parser.add_argument("--json", type=Path, default=Path("build/pages.json"), help="where the figures go")
    arguments = parser.parse_args()
    began = time.perf_counter()

    def progress(what: str) -> None:
        print(f"{time.perf_counter() - began:7.1f} s  {what}", flush=True)

    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "base.sqlite").exists():
        write_history(folder.resolve(), _BASE_REQUESTS)
        (folder / "sample.sqlite").rename(folder / "base.sqlite")
        progress(f"thirty days of {_BASE_REQUESTS:,} requests")
    with contextlib.ExitStack() as stack:
        url = None
        if arguments.database == "postgresql":
            binaries = postgres_binaries()
            assert binaries is not None, "there is no PostgreSQL server on this machine"
            server = stack.enter_context(running_postgres(binaries))
            url = asyncio.run(server.database())
        elif not (folder / "filled").exists():
            (folder / "sample.sqlite").write_bytes((folder / "base.sqlite").read_bytes())
        sound = asyncio.run(_measured(arguments, url, progress))
    sys.exit(not sound)


if __name__ == "__main__":
    main()
