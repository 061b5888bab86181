"""What was asked lately: where it went and why, and never what it said to whom it is not for."""

import csv
import html
import io
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from classifier.learning.store import ClassifiedRequest, LearningStore
from classifier.prediction import Prompt
from cost.end_users import booked
from cost.ledger.archived import month_text
from cost.times import DAY_US, day_of, month_of, wall_us
from dashboards.requests import page as requests
from dashboards.requests import saved
from proxy.plan.decision_record import Considered, ConsideredTarget
from tests.cost.ledger.in_files import put_in_files
from tests.dashboards.pages.teams import asked, keep, running_teams
from tests.running_gateway import Running
from tests.signed_in import Answer, Browser, signed_in

LIST = "/dashboard/teams/team_a/requests"
SECRET = "the merger is on Friday"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_teams(tmp_path) as found:
        yield found


@pytest.fixture
async def member(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "mem@example.com", teams={"team_a": "member"}) as found:
        yield found


def rows(answer: Answer) -> list[dict[str, str]]:
    assert answer.status == 200, answer.text[:500]
    return list(csv.DictReader(io.StringIO(answer.text)))


async def weighed(running: Running, request_id: str) -> None:
    """What learning keeps of a request of a team that lets it keep prompts."""
    kept = ClassifiedRequest(
        team_id="team_a",
        request_id=request_id,
        at_us=wall_us(),
        organisation_id="default",
        target_id="small",
        artifact="a",
        vector=b"",
        complexity=0.2,
        group_id=None,
        input_tokens=1,
        output_tokens=1,
        cost_nanousd=1,
        conversation="c",
        request_digest="d",
        prompt=msgspec.json.encode(Prompt(text=SECRET, system="You are <b>kind</b>.")).decode(),
    )
    await LearningStore(running.engine).add([kept], ())


async def test_requests_are_listed_with_their_reason_in_words(running: Running, member: Browser) -> None:
    """Newest first, with a way to each one's details."""
    now_us = wall_us()
    failed = asked("r1", entry="void", status=502, served=False, cost_nanousd=0, baseline_nanousd=None, at_us=now_us)
    again = asked("r1", attempt=2, target_id="large", reason="fallback", at_us=now_us + 9)
    await keep(running, [asked("r0", at_us=now_us - 10), failed, again])
    page = (await member.get(LIST)).text
    assert page.index("Fallback<") < page.index("Cheapest capable<")
    assert f'href="{LIST}/r1"' in page
    found = rows(await member.get(f"{LIST}?format=csv"))
    assert [(row["request_id"], row["outcome"], row["target"], row["attempts"], row["saved_usd"]) for row in found] == [
        ("r1", "Fell back", "large", "2", "0.003000000"),
        ("r0", "Answered", "small", "1", "0.003000000"),
    ]


async def test_requests_in_files_are_told(running: Running, member: Browser) -> None:
    """On the list in each order, and in the name of the CSV; not where the days that were chosen are here."""
    old_us = wall_us() - 70 * DAY_US
    await keep(running, [asked("r0"), asked("r1", at_us=old_us - 40 * DAY_US)])
    await put_in_files(running.engine, old_us)
    told = f"`weighbridge ledger restore --month {month_text(month_of(old_us))}` puts them back"
    for query in ("", "?sort=-cost", "?outcome=answered"):
        assert told in html.unescape((await member.get(LIST + query)).text), query
    lacking = await member.get(f"{LIST}?format=csv")
    assert len(rows(lacking)) == 2
    assert f"-requests-without-{month_text(month_of(old_us))}.csv" in lacking.headers["content-disposition"]
    today = f"from={day_of(wall_us())}"
    assert "puts them back" not in (await member.get(f"{LIST}?{today}")).text
    assert "-requests.csv" in (await member.get(f"{LIST}?{today}&format=csv")).headers["content-disposition"]


async def test_the_address_is_the_search(running: Running, member: Browser) -> None:
    """What it says wrongly is left out, whatever that is."""
    await keep(
        running, [asked("mine"), asked("slow", status=502, served=False, tag="red"), asked("b", team_id="team_b")]
    )

    async def found(query: str) -> set[str]:
        return {row["request_id"] for row in rows(await member.get(f"{LIST}?format=csv&{query}"))}

    assert await found("outcome=failed") == {"slow"}
    assert await found("tag=red&outcome=") == {"slow"}
    assert await found("target=large") == set()
    for wrong in ("before=x", "before=1e9.r", "before=99999999999999999999.r", "tag=%00", "key=%0a"):
        assert await found(wrong) == {"mine", "slow"}, wrong
    assert "No request fits this." in (await member.get(f"{LIST}?target=large")).text


async def test_pages_follow_each_other(running: Running, member: Browser) -> None:
    """Each request once; the second page leads back to the newest."""
    await keep(running, [asked(f"r{number:03}", at_us=wall_us() - number) for number in range(70)])
    first = (await member.get(LIST)).text
    after = first.split('rel="next"')[0].rpartition('href="')[2].split('"')[0]
    second = (await member.get(LIST + after)).text
    assert first.count(f'href="{LIST}/r') == 50
    assert second.count(f'href="{LIST}/r') == 20
    assert 'rel="prev"' in second
    assert len(rows(await member.get(f"{LIST}?format=csv"))) == 70


async def test_a_file_that_was_cut_is_named_so(
    running: Running, member: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes the newest requests for all of them."""
    monkeypatch.setattr(requests, "MAX_ROWS", 20)
    monkeypatch.setattr(requests, "_CSV_PAGES", 3)
    await keep(running, [asked(f"r{number:03}", at_us=wall_us() - number) for number in range(61)])
    cut = await member.get(f"{LIST}?format=csv")
    assert len(rows(cut)) == 60
    assert "team_a-requests-newest.csv" in cut.headers["content-disposition"]
    assert "The CSV has up to 60 requests" in (await member.get(LIST)).text
    last = (await member.get(LIST)).text.split('rel="next"')[0].rpartition('href="')[2].split('"')[0]
    whole = await member.get(f"{LIST}{last.replace('&amp;', '&')}&format=csv")
    assert "team_a-requests.csv" in whole.headers["content-disposition"]
    assert len(rows(whole)) == 11


async def test_a_request_tells_its_story_and_what_it_would_have_cost(running: Running, member: Browser) -> None:
    """In sentences, attempts and amounts."""
    entry = asked(
        "r", cheapest_nanousd=2_000_000, cheapest_price="mini@1", hosted_nanousd=3_000_000, hosted_price="h@1"
    )
    heard = asked("heard", unit="second", quantity_milli=501, request_nanousd=50_100, input_nanousd=0, output_nanousd=0)
    await keep(running, [entry, heard])
    metered = (await member.get(f"{LIST}/heard")).text
    assert '<th scope="row">Audio Seconds</th><td class="numeric"><span class="figure-text">0.501</span>' in metered
    page = (await member.get(f"{LIST}/r")).text
    for part in (
        "small was the cheapest model expected",
        "$0.003000 (75.0 %) was saved",
        "large@test",
        "mini@1",
        "h@1",
    ):
        assert part in page, part
    assert "numbers only" in page


async def test_only_what_is_the_teams_own_is_there(running: Running, member: Browser) -> None:
    """By id as little as by list."""
    await keep(running, [asked("theirs", team_id="team_b"), asked("away", organisation_id="fjord")])
    for request_id in ("theirs", "away", "nobody's", "a/../b", "%00", "x" * 300):
        answer = await member.get(f"{LIST}/{request_id}")
        assert answer.status in {400, 404}, request_id
    assert "theirs" not in (await member.get(LIST)).text


async def test_a_prompt_is_shown_to_members_of_a_team_that_lets_it_be_kept(running: Running, member: Browser) -> None:
    """Not to finance or administrators of the organisation, and to nobody where the policy keeps less."""
    await keep(running, [asked("r")])
    await weighed(running, "r")
    path = f"{LIST}/r"
    assert SECRET not in (await member.get(path)).text
    await running.accounts.update_team("team_a", learning="prompts")
    shown = (await member.get(path)).text
    assert SECRET in shown
    assert "You are &lt;b&gt;kind&lt;/b&gt;." in shown
    assert SECRET not in (await member.get(LIST)).text
    assert SECRET not in (await member.get(f"{LIST}?format=csv")).text
    async with (
        signed_in(running, "fin@example.com", role="finance") as finance,
        signed_in(running, "adm@example.com", role="admin") as admin,
    ):
        for other in (finance, admin):
            answer = await other.get(path)
            assert answer.status == 200
            assert SECRET not in answer.text
            assert "shown to its own members only" in answer.text


async def test_an_id_with_odd_characters_is_found(running: Running, member: Browser) -> None:
    """Callers may name their requests."""
    await keep(running, [asked("a/b?c#d e")])
    page = (await member.get(LIST)).text
    assert f'href="{LIST}/a%2Fb%3Fc%23d%20e"' in page
    assert (await member.get(f"{LIST}/a/b%3Fc%23d%20e")).status == 200


async def test_a_request_tells_what_its_target_was_compared_by(running: Running, member: Browser) -> None:
    """The margin and why, apart from the cost, which is the average price; nothing where nothing was compared."""
    own = asked("own", margin_nanousd=12_000, margin_why="own-room", at_us=wall_us())
    await keep(running, [own, asked("named", reason="named", at_us=wall_us())])
    page = (await member.get(f"{LIST}/own")).text
    assert "Our own GPUs had room and their hours are paid for anyway" in page
    assert "The average price is booked." in page
    (row,) = rows(await member.get(f"{LIST}/own?format=csv&table=attempts"))
    assert row["because"] == "our own with room"
    assert "It was compared by" not in (await member.get(f"{LIST}/named")).text


async def test_a_request_is_found_by_its_id(running: Running, member: Browser) -> None:
    """It leads to the request's page; another team's id, and one that nobody has, is told as not there."""
    await keep(running, [asked("a/b c"), asked("theirs", team_id="team_b")])
    found = await member.get(f"{LIST}?id=+a%2Fb+c+")
    assert (found.status, found.headers["location"]) == (303, f"{LIST}/a%2Fb%20c")
    for unknown in ("theirs", "<b>", "%00"):
        answer = await member.get(f"{LIST}?id={unknown}")
        assert answer.status == 200
        assert "<b>”" not in answer.text
        assert "There is no request" in answer.text or unknown == "%00"


async def test_requests_are_filtered_by_days_status_latency_and_cost(running: Running, member: Browser) -> None:
    """By attempts; amounts may be written as people write them; what is written wrongly is left out."""
    noon_us = 1_775_390_400_000_000
    await keep(
        running,
        [
            asked("usual", at_us=noon_us, cost_nanousd=1_000_000, duration_us=900_000),
            asked("dear", at_us=noon_us + DAY_US, cost_nanousd=1_500_000_000_000, duration_us=900_000),
            asked("slow", at_us=noon_us + 2 * DAY_US, status=503, served=False, duration_us=12_000_000),
        ],
    )

    async def found(query: str) -> set[str]:
        return {row["request_id"] for row in rows(await member.get(f"{LIST}?format=csv&{query}"))}

    for query, wanted in (
        ("from=2026-04-06", {"dear", "slow"}),
        ("to=2026-04-06", {"usual", "dear"}),
        ("from=2026-04-06&to=2026-04-06", {"dear"}),
        ("status=5xx", {"slow"}),
        ("status=200", {"usual", "dear"}),
        ("dearer=%241,500", {"dear"}),
        ("dearer=1500.000000001", set()),
        ("slower=12", {"slow"}),
        ("from=yesterday&to=2026-13-01&status=9xx&slower=-1&dearer=1e9", {"usual", "dear", "slow"}),
    ):
        assert await found(query) == wanted, query


async def test_requests_are_put_in_order_by_the_address(running: Running, member: Browser) -> None:
    """By cost, latency and tokens, page after page, each once; what has no price comes last."""
    await keep(running, [asked(f"r{number:02}", cost_nanousd=1 + number * 37 % 60) for number in range(60)])
    await keep(running, [asked("unknown", cost_nanousd=None)])

    def shown(page: str) -> list[str]:
        return re.findall(rf'<a class="id" href="{LIST}/([^"]+)"', page)

    first = (await member.get(f"{LIST}?sort=-cost&columns=request_id,cost")).text
    second = (await member.get(f"{LIST}?sort=-cost&page=2")).text
    by_cost = sorted(range(60), key=lambda number: -(number * 37 % 60))
    assert [*shown(first), *shown(second)] == [*(f"r{number:02}" for number in by_cost), "unknown"]
    assert 'aria-sort="descending"' in first
    assert 'rel="next"' in first
    assert 'rel="next"' not in second
    assert first.count("<td") == 2 * 50
    assert shown((await member.get(f"{LIST}?sort=cost")).text)[0] == f"r{by_cost[-1]:02}"
    assert (await member.get(f"{LIST}?sort=-duration&page=99999999999")).status == 200


async def test_a_request_shows_what_its_targets_were_compared_by(running: Running, member: Browser) -> None:
    """Each target with its chance, price and margin, and the line that decided; older requests have none."""
    told = Considered(
        tolerance=0.03,
        reference_adequate=0.9,
        targets=(
            compared("small", "cheapest-capable", adequate=0.88, margin_nanousd=120_000, margin_why="own-room"),
            compared("large", "fallback", adequate=0.9, margin_nanousd=4_000_000, margin_why="bought"),
            compared("tiny", "too-hard", may_be_asked=False, adequate=0.5, detail="<i>loses</i> 0.400"),
        ),
    )
    await keep(running, [asked("r", considered=msgspec.json.encode(told).decode()), asked("old")])
    page = (await member.get(f"{LIST}/r")).text
    assert "small has a chance of 88.0 % of a good answer, the baseline model 90.0 %" in page
    assert "a better chance would cost more than it is worth." in page
    assert "it came before large at $0.004" in page
    assert "&lt;i&gt;loses&lt;/i&gt; 0.400" in page
    found = rows(await member.get(f"{LIST}/r?format=csv&table=considered"))
    assert [(row["target"], row["state"], row["lost_share"], row["margin_usd"]) for row in found] == [
        ("small", "Chosen", "0.02", "0.000120000"),
        ("large", "Next, if that fails", "0.0", "0.004000000"),
        ("tiny", "Not good enough", "0.4", ""),
    ]
    assert "compared by" not in (await member.get(f"{LIST}/old")).text.split("Attempts", 1)[0]


def compared(target_id: str, why: str, *, may_be_asked: bool = True, **changes: Any) -> ConsideredTarget:
    usual: dict[str, Any] = {
        "capability": 0.5,
        "adequate": None,
        "expected_nanousd": 4_000_000,
        "margin_nanousd": None,
        "margin_why": "",
        "detail": "",
    }
    return ConsideredTarget(target_id=target_id, why=why, may_be_asked=may_be_asked, **{**usual, **changes})


async def test_one_field_finds_a_complaints_request(running: Running, member: Browser) -> None:
    """By end user, however many are newer; by key and model by their names; by the second; by cost and latency; another team's never."""
    noon_us = 1_775_390_400_000_000
    await keep(
        running,
        [
            asked(
                "complaint", at_us=noon_us + 7_000_000, end_user="ann", status=502, served=False, duration_us=9_000_000
            ),
            asked("usual", at_us=noon_us, end_user="bob", target_id="large", tag="nightly"),
            asked("dear", at_us=noon_us + DAY_US, cost_nanousd=2_000_000_000),
            asked("theirs", team_id="team_b", end_user="ann"),
            asked("mailed", at_us=noon_us, end_user=booked("ann@example.com")),
        ],
    )
    (key_id,) = {row["key"] for row in rows(await member.get(f"{LIST}?format=csv"))}

    async def found(line: str) -> set[str]:
        answer = await member.get(f"{LIST}?{urlencode({'q': line, 'format': 'csv'})}")
        return {row["request_id"] for row in rows(answer)}

    for line, wanted in (
        ("ann", {"complaint"}),
        ("user:ann", {"complaint"}),
        ("an", {"complaint"}),
        ("user:ann@example.com", {"mailed"}),
        ("ann@example.com", {"mailed"}),
        ("large", {"usual"}),
        ("model:larg", {"usual"}),
        ("tag:nightly", {"usual"}),
        ("2026-04-05T12:00:07", {"complaint"}),
        ("at:2026-04-05T12:00 status:5xx", {"complaint"}),
        ("cost>1", {"dear"}),
        ("latency>5s", {"complaint"}),
        ("latency<5s cost<1", {"usual", "mailed"}),
        ("outcome:failed", {"complaint"}),
        (f"key:{key_id[:8]} user:bob", set()),
        ("bob large", {"usual"}),
        ("bob small", set()),
        ("usua", {"usual"}),
        ("100%", set()),
    ):
        assert await found(line) == wanted, line
    assert (await member.get(f"{LIST}?q=complaint")).headers["location"] == f"{LIST}/complaint"
    page = (await member.get(f"{LIST}?q=user%3Aann")).text
    assert "2026-04-05 12:00:07 UTC" in page
    assert "<code>ann</code>" in page


async def test_a_pasted_sentence_is_told_what_is_searched(running: Running, member: Browser) -> None:
    """Before it is sent, and where it finds nothing."""
    await keep(running, [asked("one", at_us=wall_us() - 10**6)])
    assert "not by what requests said" in (await member.get(LIST)).text
    sentence = "Please%20summarise%20the%20attached%20invoice%20for%20Ms%20Okafor"
    page = html.unescape((await member.get(f"{LIST}?q={sentence}")).text)
    assert "No request fits this. Every word has to be in its id, end user, key or model" in page
    assert "Every word has to be" not in (await member.get(f"{LIST}?target=large")).text


async def test_a_search_says_what_it_did_not_understand(running: Running, member: Browser) -> None:
    """An unknown outcome is refused with the list, in the address too; names that nobody has are told."""
    await keep(running, [asked("mine")])
    for query in ("outcome=lucky", "q=outcome%3Alucky", "outcome=lucky&format=csv"):
        answer = await member.get(f"{LIST}?{query}")
        assert answer.status == 422, query
        assert "There is no outcome `lucky`; there are answered, failed" in answer.text
        assert "/requests/mine" not in answer.text
    for line in ("x" * 500, "id:" + "x" * 300, "model:" + "x" * 300, "x" * 5_000):
        assert (await member.get(f"{LIST}?{urlencode({'q': line})}")).status == 200, line[:10]
    assert "No key of this team is called `ghost`" in (await member.get(f"{LIST}?q=key%3Aghost")).text
    assert "is no field" in (await member.get(f"{LIST}?q=colour%3Ared")).text
    assert "There is no request `nope`" in (await member.get(f"{LIST}?q=id%3Anope")).text


async def test_searches_are_kept_by_each_person(running: Running, member: Browser) -> None:
    """By name, in one team; nobody else sees them; so many at most; of the address only what is a search."""
    await keep(running, [asked("mine", tag="red")])
    given = {"name": "Red <ones>", "query": "tag=red&q=cost%3E0&before=1.x&csrf=y"}
    assert (await member.post(f"{LIST}/views", given)).status == 303
    page = (await member.get(LIST)).text
    assert 'href="?tag=red&amp;q=cost%3E0"' in page
    assert "Red &lt;ones&gt;" in page
    async with signed_in(running, "other@example.com", teams={"team_a": "member"}) as other:
        assert "Red &lt;ones&gt;" not in (await other.get(LIST)).text
    for number in range(saved.MOST - 1):
        assert (await member.post(f"{LIST}/views", {"name": f"n{number}", "query": "tag=x"})).status == 303
    full = await member.post(f"{LIST}/views", {"name": "one more", "query": "tag=x"})
    assert full.status == 422
    assert "remove one first" in full.text
    assert (await member.post(f"{LIST}/views", {"name": "n0", "query": "tag=y"})).status == 303
    assert (await member.post(f"{LIST}/views/remove", {"name": "Red <ones>"})).status == 303
    assert "Red &lt;ones&gt;" not in (await member.get(LIST)).text


async def test_a_search_is_kept_whole_or_refused(running: Running, member: Browser) -> None:
    """As long as its line may be; one with more parameters or characters than fit is told, and nothing of it is kept."""
    long = urlencode({"q": "cost>0.5 " * 50, "tag": "nightly"})
    assert len(long) > 500
    kept = await member.post(f"{LIST}/views", {"name": "long", "query": long})
    assert (kept.status, kept.location) == (303, f"{LIST}?{long}")
    for query, told in (
        (urlencode([("q", "a")] * 41), "at most 40 parameters"),
        ("q=" + "é" * 400, "too long to keep"),
    ):
        refused = await member.post(f"{LIST}/views", {"name": "no", "query": query})
        assert refused.status == 422
        assert told in refused.text
    assert "name=no" not in (page := (await member.get(LIST)).text)
    assert ">long</a>" in page
