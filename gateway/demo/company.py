"""Data of the sample: a made-up freight company with ten teams, their prompts, and a second company."""

from typing import Final

import msgspec

from accounts.access import OrganisationRole, TeamRole
from accounts.caller import Escalation, Learning
from classifier.prediction import Prompt

ORGANISATION: Final = "default"
ORGANISATION_NAME: Final = "Northwind Freight"
NEIGHBOUR: Final = "fjord"
NEIGHBOUR_NAME: Final = "Fjord Analytics"

OWN: Final = "llama-3-70b"
MINI: Final = "gpt-4o-mini"
HAIKU: Final = "claude-haiku-4-5"
SONNET: Final = "claude-sonnet-4-5"
REFERENCE: Final = "gpt-4o"
HOSTED: Final = "llama-3.3-70b-together"
POOL: Final = "l40s"
FAST: Final = "fast"
"""The alias of the small model."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of prompt that a team sends, with its varying words."""

    text: str
    words: tuple[str, ...]
    system: str = ""
    input_tokens: int
    """The median of prompt tokens, including retrieved context."""
    output_tokens: int
    answer: str
    """What the stand-ins answer; `{}` is the varying word."""
    json_mode: bool = False

    def prompts(self) -> list[Prompt]:
        """Return one prompt for each varying word."""
        return [
            Prompt(text=self.text.format(word), system=self.system, json_mode=self.json_mode) for word in self.words
        ]


class SampleTeam(msgspec.Struct, frozen=True, kw_only=True):
    """A team and its traffic."""

    team_id: str
    name: str
    share: int
    """The team's weight in the number of requests."""
    work: tuple[Work, ...]
    tags: tuple[str, ...] = ("",)
    batch_share: float = 0.0
    named_share: float = 0.0
    """The share of requests that name a model, as hard-coded by somebody once."""
    names: str = REFERENCE
    cached_share: float = 0.3
    stream_share: float = 0.5
    night: bool = False
    """True for a team whose work runs at night and on weekends."""
    growth: float = 1.0
    """The factor by which the team's traffic grows over the month."""
    learning: Learning = "numbers"
    escalation: Escalation = "off"
    quality_floor: float | None = None
    allowed_models: tuple[str, ...] | None = None
    spill_over: bool = True
    budget_usd: int | None = None
    hard: bool = False
    keys: tuple[str, ...] = ("production", "staging")
    only_key: str = ""
    """The name of the key that sends all of this traffic; empty: all of the team's keys do."""


class SamplePerson(msgspec.Struct, frozen=True, kw_only=True):
    """A person who signs in."""

    email: str
    name: str
    organisation_id: str = ORGANISATION
    role: OrganisationRole = ""
    teams: tuple[tuple[str, TeamRole], ...] = ()


_SUPPORT_SYSTEM: Final = (
    "You answer customers of a freight company. Be brief and kind, and quote the passage that you rely on."
)
_FAQ = Work(
    text="Where is my {}? The tracking page has said `in transit` since Monday.",
    words=("parcel", "pallet", "container", "return shipment", "customs paper", "second delivery"),
    system=_SUPPORT_SYSTEM,
    input_tokens=9_400,
    output_tokens=460,
    answer="I am sorry that your {} is late. According to section 4.2 of our terms, tracking can stand still for up to three working days while freight changes carriers. Yours left the hub in Leipzig on Tuesday at 06:40 and is planned for delivery on Thursday between 9 and 13 o'clock. If it has not arrived by then, reply to this mail and we open a search the same day.",
)
_SORT = Work(
    text="Sort this mail into billing, shipping, damage or other. One word. Mail: the {} is wrong again.",
    words=("invoice", "address", "label", "driver", "pick-up time", "VAT number"),
    input_tokens=1_700,
    output_tokens=6,
    answer="billing",
)
_EXTRACT = Work(
    text="Extract consignee, weight in kg and Incoterm from this {} as JSON with exactly these keys.",
    words=("bill of lading", "delivery note", "customs declaration", "packing list", "mail", "scan"),
    input_tokens=10_600,
    output_tokens=640,
    answer='{"consignee": "Haugesund Marine AS", "weight_kg": 1840, "incoterm": "DAP"}',
    json_mode=True,
)
_SEARCH = Work(
    text="Rewrite this search so that the index finds it, three variants, one a line: {}",
    words=("reefer rates rotterdam", "tail lift tuesday", "dangerous goods class 3", "tariff 2026 oslo", "empty legs"),
    input_tokens=1_200,
    output_tokens=90,
    answer="{} price list\n{} conditions and surcharges\nhow to book: {}",
)
_ANSWER = Work(
    text="Answer from the passages above only, with their numbers: what is our rule for {}?",
    words=("late pick-ups", "damaged goods", "demurrage", "subcontractors", "temperature logs", "public holidays"),
    system="You answer from the passages of the handbook that come with each question.",
    input_tokens=11_800,
    output_tokens=720,
    answer="The handbook has one rule for {}: whoever notices first reports it within 2 hours (section 7.1), the depot answers within 24 hours (7.3), and after 48 hours the customer is credited 5 % of the freight (7.4). Exceptions need the signature of the branch manager.",
)
_SUMMARY = Work(
    text="Summarise the {} above in five bullet points for people who were not there.",
    words=("meeting", "incident", "tender", "contract", "call", "audit"),
    input_tokens=13_200,
    output_tokens=820,
    answer="- What happened: the {} took 50 minutes and ended with two open points.\n- Decided: the night line to Gdansk goes on until March.\n- Costs: 18,400 euros, of which 6,000 are in the budget already.\n- Open: who signs for the customs broker, and from which day.\n- Next: Marek sends the draft by Thursday, comments until Monday.",
)
_REVIEW = Work(
    text="Review this change to the {}. Name every bug with its line, and nothing that is only taste.\n\n"
    "async def settle(self, entry):\n    async with self.lock:\n        for other in self.open:\n"
    "            if other.id == entry.id:\n                self.open.remove(other)\n        await self.write(entry)",
    words=("ledger", "scheduler", "router", "rate cache", "label printer", "webhook sender"),
    input_tokens=22_800,
    output_tokens=1_050,
    answer="Line 4: `self.open` is changed while it is iterated, so the entry after each removed one is skipped. Iterate over a copy, or build a new list. Line 5: two entries of the {} with the same id are both removed, although one of them may be newer. Line 6: a failing `write` leaves the entry removed and never written; write first, then remove. Nothing else.",
)
_TESTS = Work(
    text="Write property-based tests in Python for a function that merges overlapping {}.",
    words=("time windows", "tariff zones", "delivery slots", "price bands", "shifts"),
    input_tokens=6_200,
    output_tokens=1_350,
    answer="Three properties describe merging overlapping {}: the result is sorted and disjoint, it covers exactly the points of the input, and merging it again changes nothing.\n\n@given(lists(intervals()))\ndef test_merging_twice_is_merging_once(given):\n    once = merge(given)\n    assert merge(once) == once",
)
_PROOF = Work(
    text="Prove or refute with a counterexample: the greedy assignment of {} is within a factor of two of the optimum when "
    "capacities are equal. State each lemma that you use.",
    words=("loads to trucks", "containers to berths", "drivers to tours", "docks to arrivals"),
    input_tokens=4_300,
    output_tokens=2_100,
    answer="The claim for {} holds. Lemma 1: the greedy choice never leaves a place empty that the optimum fills twice. Lemma 2: with equal capacities, each greedy placement blocks at most two placements of the optimum. Charge each of those to the placement that blocks it; no placement is charged more than twice, so the optimum is at most twice the greedy result.",
)
_SQL = Work(
    text="Write SQL for PostgreSQL: revenue by lane and week with the share of {}, gaps filled with zero, as one statement.",
    words=("late deliveries", "empty kilometres", "fuel surcharge", "claims", "spot loads"),
    input_tokens=9_100,
    output_tokens=630,
    answer="WITH weeks AS (SELECT generate_series(date_trunc('week', min(shipped_at)), now(), '1 week') AS week FROM shipment)\nSELECT l.name, w.week, coalesce(sum(s.revenue), 0) AS revenue, coalesce(avg(s.is_affected::int), 0) AS share -- {}\nFROM lane l CROSS JOIN weeks w LEFT JOIN shipment s ON s.lane_id = l.id AND date_trunc('week', s.shipped_at) = w.week\nGROUP BY 1, 2 ORDER BY 1, 2;",
)
_CONTRACT = Work(
    text="Compare clause 14 of both drafts on {}: who bears which risk, what changed, what we should ask for, and which "
    "precedent supports it.",
    words=("force majeure", "liability caps", "indemnities", "demurrage", "data protection", "termination"),
    input_tokens=33_600,
    output_tokens=1_650,
    answer="On {}, the second draft moves the risk to us in two places. 14.1 now also covers delay by subcontractors, and 14.3 drops the cap of 250,000 euros. Unchanged: notice within five days. Ask for the cap back, and for an exception where the customer chose the subcontractor. Both were agreed in the contract of 2023 with the same counterparty.",
)
_COPY = Work(
    text="Write three versions of a friendly notice of at most 40 words about {}.",
    words=("new opening hours", "the spring tariff", "our electric trucks", "the app", "a strike on Friday"),
    input_tokens=1_400,
    output_tokens=360,
    answer="1. Good news about {}: it starts on Monday, and you need not do anything.\n2. {}: what changes for you fits on one card. Have a look before Monday.\n3. You asked, we listened: {} is here. Questions? Your depot knows more.",
)
_RERANK = Work(
    text="Order these forty results for the search `{}`, the most useful first, and say in a word why each stands there.",
    words=("reefer rates rotterdam", "tail lift tuesday", "dangerous goods class 3", "tariff 2026 oslo", "empty legs"),
    input_tokens=9_400,
    output_tokens=260,
    answer="1. Result 14, exact: it is the tariff for {} itself.\n2. Result 3, current: the surcharge table of this quarter.\n3. Result 22, related: the booking form that the tariff names.\nThe other 37 are older copies or other lanes.",
)
_TRANSLATE = Work(
    text="Translate to {}, keep the placeholders: Your driver arrives at {{time}}, please have {{count}} pallets ready.",
    words=("Norwegian", "Polish", "Dutch", "Turkish", "French", "Romanian"),
    input_tokens=900,
    output_tokens=90,
    answer="[The {} text, made up: driver at {time}, {count} pallets.]",
)
_RISK = Work(
    text="Estimate from the figures above how our margin moves if {}, in three scenarios with their assumptions, and say "
    "what would change your mind.",
    words=("diesel rises by a fifth", "the strait closes", "two customers leave", "rates fall by a tenth"),
    input_tokens=12_500,
    output_tokens=1_420,
    answer="If {}, our margin falls from 6.1 to between 3.8 and 5.2 percent. Mild: half is passed on within a quarter, 5.2. Middle: a third is passed on, 4.6. Hard: nothing is passed on until the contracts renew, 3.8. I would change my mind if more than a fifth of the volume had a diesel clause, which the figures above do not show.",
)
_FRAUD = Work(
    text="Does this order look like fraud? Answer with JSON: score from 0 to 1, and the two strongest reasons. Order: {}",
    words=("new account, night, card", "changed address", "10 laptops", "prepaid, no phone", "usual customer"),
    input_tokens=3_600,
    output_tokens=100,
    answer='{"score": 0.34, "reasons": ["{}", "first order of this size"]}',
    json_mode=True,
)
_ON_CALL = Work(
    text="Here are logs and the last deploys. What most likely broke {}, how sure are you, and what do we look at next?",
    words=("label printing", "the booking page", "EDI imports", "driver logins", "the rate API"),
    input_tokens=26_400,
    output_tokens=930,
    answer="Most likely the deploy of 13:52, which changed the connection pool, broke {}: errors begin two minutes later and only on hosts that have it. I am fairly sure, about four in five. Look next at the pool's wait time on one of those hosts, and roll one host back to compare.",
)

# fmt: off
TEAMS: Final = (
    SampleTeam(team_id="support", name="Customer support", share=26, work=(_FAQ, _FAQ, _SORT, _ANSWER, _TRANSLATE),
        tags=("chat", "mail", "chat", "chat"), stream_share=0.8, cached_share=0.6, learning="prompts", escalation="all",
        budget_usd=145, keys=("chat widget", "mail triage", "staging")),
    SampleTeam(team_id="search", name="Search", share=17, work=(_SEARCH, _SEARCH, _ANSWER),
        named_share=0.45, names=FAST, stream_share=0.1, budget_usd=60, keys=("query rewriting", "staging")),
    SampleTeam(team_id="paperwork", name="Paperwork", share=14, work=(_EXTRACT, _EXTRACT, _SORT),
        tags=("customs", "invoices"), batch_share=0.7, stream_share=0.0, cached_share=0.1, budget_usd=95),
    SampleTeam(team_id="developers", name="Developer tools", share=12, work=(_REVIEW, _TESTS, _SQL, _PROOF, _SUMMARY),
        tags=("review", "editor"), cached_share=0.7, stream_share=0.9, escalation="whole", quality_floor=0.99,
        growth=1.6, budget_usd=155, keys=("editor", "review bot", "experiments")),
    SampleTeam(team_id="fraud", name="Fraud checks", share=9, work=(_FRAUD,), night=True, stream_share=0.0,
        quality_floor=0.98, learning="off", spill_over=False, budget_usd=36, hard=True),
    SampleTeam(team_id="handbook", name="Handbook assistant", share=7, work=(_ANSWER, _SUMMARY), cached_share=0.5,
        stream_share=0.9, budget_usd=70, keys=("production",)),
    SampleTeam(team_id="pricing", name="Pricing and risk", share=5, work=(_RISK, _SQL, _PROOF), named_share=0.25,
        growth=0.7, budget_usd=80),
    SampleTeam(team_id="legal", name="Legal", share=4, work=(_CONTRACT, _SUMMARY), named_share=0.6, cached_share=0.4,
        learning="off", allowed_models=(OWN, SONNET, REFERENCE), budget_usd=155, keys=("contract desk",)),
    SampleTeam(team_id="marketing", name="Marketing", share=4, work=(_COPY, _TRANSLATE, _SUMMARY), named_share=0.1,
        budget_usd=25, keys=("campaigns",)),
    SampleTeam(team_id="on-call", name="On-call assistant", share=2, work=(_ON_CALL, _SQL), night=True,
        cached_share=0.6, stream_share=1.0, budget_usd=32, keys=("pager",)),
)
# fmt: on
"""The company's ten teams, the busiest first."""

JUMP: Final = msgspec.structs.replace(
    next(team for team in TEAMS if team.team_id == "search"),
    share=20,
    work=(_RERANK,),
    tags=("reranking",),
    named_share=1.0,
    names=REFERENCE,
    only_key="query rewriting",
    stream_share=0.0,
)
"""What began on a Tuesday at 14:00: one key of the search team sends long prompts to a dear model by its name."""

NEIGHBOURS: Final = (
    SampleTeam(team_id="fjord-lab", name="Fjord lab", share=2, work=(_SQL, _SUMMARY), budget_usd=50, keys=("lab",)),
)
"""Teams of the other organisation, which the company must never see."""

PEOPLE: Final = (
    SamplePerson(email="ada@northwind.example", name="Ada Brandt", role="admin"),
    SamplePerson(email="finn@northwind.example", name="Finn Okafor", role="finance"),
    SamplePerson(email="ola@northwind.example", name="Ola Haugen", role="operator"),
    SamplePerson(
        email="tess@northwind.example", name="Tess Nakamura", teams=(("support", "admin"), ("handbook", "member"))
    ),
    SamplePerson(email="milo@northwind.example", name="Milo Varga", teams=(("support", "member"),)),
    SamplePerson(
        email="dina@northwind.example", name="Dina Rossi", teams=(("developers", "admin"), ("on-call", "admin"))
    ),
    SamplePerson(email="juri@northwind.example", name="Juri Lindqvist", teams=(("developers", "member"),)),
    SamplePerson(email="petra@northwind.example", name="Petra Solberg", teams=(("paperwork", "admin"),)),
    SamplePerson(email="leo@northwind.example", name="Leo Marchetti", teams=(("legal", "admin"),)),
    SamplePerson(email="signe@fjord.example", name="Signe Dahl", organisation_id=NEIGHBOUR, role="admin"),
)
"""People of all roles. Ada, Finn, Ola, Tess and Milo are those that `serve --sample` prints links for."""
SHOWN: Final = PEOPLE[:5]
