"""The breaker as a state machine: when it opens, how it comes back, and what it never does."""

import random

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from providers.breaker import FAULTS_KEPT, Absence, Breakers, BreakerState, Permit
from providers.config import BreakerConfig
from providers.failure_streak import EVERYONE, FAILING_AFTER, Scope
from providers.target import Target
from tests.examples import examples
from tests.providers.calls import target


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def breakers(*names: str) -> tuple[Breakers, Clock, Target]:
    clock = Clock()
    made, of = Breakers(BreakerConfig(), clock), target(*names)
    made.adopt([of])
    return made, clock, of


ANN: Scope = ("team_a", "key_ann")
AMY: Scope = ("team_a", "key_amy")
BOB: Scope = ("team_b", "key_bob")
EVE: Scope = ("team_c", "key_eve")


def take(made: Breakers, deployment_id: str = "t/a", caller: Scope = EVERYONE) -> Permit:
    permit = made.try_acquire(deployment_id, caller)
    assert permit is not None
    return permit


def fail(made: Breakers, times: int, deployment_id: str = "t/a", caller: Scope = EVERYONE) -> None:
    for _ in range(times):
        take(made, deployment_id, caller).failure()


def ids(made: Breakers, of: Target, caller: Scope = EVERYONE) -> list[str]:
    return [each.deployment_id for each in made.available(of, caller)]


def serves(made: Breakers, of: Target, *callers: Scope) -> list[bool]:
    return [bool(made.available(of, each)) and bool(made.fleet({"t": of}, each)["t"]) for each in callers]


def test_opens_after_five_failures_in_a_row() -> None:
    """Four failures and a success leave it closed; five in a row open it."""
    made, _, of = breakers("a")
    fail(made, 4)
    take(made).success()
    fail(made, 4)
    assert made.state("t/a") == "closed"
    fail(made, 1)
    assert made.state("t/a") == "open"
    assert made.try_acquire("t/a") is None
    assert ids(made, of) == []


def test_one_probe_after_thirty_seconds() -> None:
    """Half-open lets one probe through, and its success closes the breaker."""
    made, clock, of = breakers("a")
    fail(made, 5)
    clock.now += 29.9
    assert made.try_acquire("t/a") is None
    clock.now += 0.1
    assert made.state("t/a") == "half-open"
    assert ids(made, of) == ["t/a"]
    probe = take(made)
    assert made.try_acquire("t/a") is None
    assert ids(made, of) == []
    probe.success()
    assert made.state("t/a") == "closed"
    assert ids(made, of) == ["t/a"]


def test_ejections_last_longer_up_to_the_cap() -> None:
    """Each failed probe makes the next ejection 30 s longer, up to 300 s."""
    made, clock, _ = breakers("a")
    fail(made, 5)
    for expected_s in (30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300, 300):
        clock.now += expected_s - 0.01
        assert made.state("t/a") == "open"
        clock.now += 0.01
        take(made).failure()
        assert made.state("t/a") == "open"


def test_health_earns_forgiveness() -> None:
    """After a long healthy time an ejection is a first one again; after a short one it is not."""
    for healthy_s, expected_s in ((10, 60), (1_000, 30)):
        made, clock, _ = breakers("a")
        fail(made, 5)
        clock.now += 30
        take(made).success()
        clock.now += healthy_s
        fail(made, 5)
        clock.now += expected_s - 1
        assert made.state("t/a") == "open"
        clock.now += 1
        assert made.state("t/a") == "half-open"


def test_silence_counts_where_nobody_has_an_answer() -> None:
    """One long answer beside others that come says nothing; five while nothing comes are a hang."""
    made, _, _ = breakers("a")
    for _ in range(10):
        waits = take(made)
        take(made).success()
        waits.silent()
    assert made.state("t/a") == "closed"
    for permit in [take(made) for _ in range(5)]:
        permit.silent()
    assert made.state("t/a") == "open"


def test_an_abandoned_probe_gives_its_place_back() -> None:
    """A caller that hangs up during the probe neither closes nor blocks the breaker."""
    made, clock, _ = breakers("a")
    fail(made, 5)
    clock.now += 30
    take(made).abandon()
    assert made.state("t/a") == "half-open"
    take(made).success()
    assert made.state("t/a") == "closed"


def test_reports_from_before_the_ejection_change_nothing() -> None:
    """A slow answer that began before the ejection does not close the breaker, nor lengthen it."""
    made, clock, _ = breakers("a")
    early, other = take(made), take(made)
    fail(made, 5)
    early.success()
    assert made.state("t/a") == "open"
    other.failure()
    clock.now += 30
    assert made.state("t/a") == "half-open"


@pytest.mark.parametrize(("names", "most"), [("ab", 1), ("abc", 1), ("abcd", 2), ("abcde", 2)])
def test_never_more_than_half(names: str, most: int) -> None:
    """However badly all deployments do, half of them stay in use."""
    made, _, of = breakers(*names)
    for _ in range(20):
        for name in names:
            permit = made.try_acquire(f"t/{name}")
            if permit is not None:
                permit.failure()
    assert len(names) - len(ids(made, of)) == most


def test_a_cut_after_the_first_token_counts() -> None:
    """Streams that always begin well and then break off open the breaker, too."""
    made, clock, _ = breakers("a")
    for _ in range(5):
        permit = take(made)
        permit.success()
        permit.failure()
    assert made.state("t/a") == "open"
    clock.now += 30
    probe = take(made)
    probe.success()
    probe.failure()
    assert made.state("t/a") == "open"


def test_a_later_success_of_another_attempt_stands() -> None:
    """A cut does not bring back failures that another attempt's success has wiped out."""
    made, _, _ = breakers("a")
    fail(made, 4)
    cut, good = take(made), take(made)
    cut.success()
    good.success()
    cut.failure()
    assert made.state("t/a") == "closed"
    fail(made, 3)
    assert made.state("t/a") == "closed"


def test_the_last_word_is_the_last() -> None:
    """Reports after a failure or an abandonment do nothing."""
    made, _, _ = breakers("a")
    permit = take(made)
    for _ in range(9):
        permit.failure()
    given_up = take(made)
    given_up.abandon()
    for _ in range(9):
        given_up.failure()
    assert made.state("t/a") == "closed"


def test_reconfigured_targets_keep_their_state() -> None:
    """A reload keeps the state of deployments that stay and forgets those that went."""
    made, _, _ = breakers("a", "b")
    fail(made, 5)
    again = target("a", "c")
    made.adopt([again])
    assert ids(made, again) == ["t/c"]
    assert [made.state(each) for each in ("t/a", "t/c")] == ["open", "closed"]


def test_a_request_from_before_a_reload_forgets_nothing() -> None:
    """Looking at the old target again leaves the new one's breakers as they are, and its own still work."""
    made, _, old = breakers("a", "gone")
    new = target("a", "b")
    made.adopt([new])
    fail(made, 5, "t/b")
    assert ids(made, old) == ["t/a", "t/gone"]
    assert made.state("t/b") == "open"
    assert ids(made, new) == ["t/a"]
    fail(made, 5, "t/gone")
    assert made.try_acquire("t/gone") is None
    assert ids(made, old) == ["t/a"]
    made.adopt([new])
    assert [made.state(each) for each in ("t/a", "t/b")] == ["closed", "open"]


def test_a_reload_keeps_a_probe_under_way() -> None:
    """A probe that began before a reload still closes its breaker, and the group counts it once."""
    made, clock, of = breakers("a", "b")
    fail(made, 5)
    clock.now += 30
    probe = take(made)
    made.adopt([target("a", "b", "c")])
    probe.success()
    assert made.state("t/a") == "closed"
    fail(made, 5, "t/b")
    assert ids(made, of) == ["t/a"]


def test_a_target_that_was_never_adopted_is_a_group_all_the_same() -> None:
    """Half of its deployments stay in use from the first look on."""
    made, of = Breakers(BreakerConfig(), Clock()), target("a", "b")
    assert ids(made, of) == ["t/a", "t/b"]
    for name in ("t/a", "t/b"):
        fail(made, 5, name)
    assert ids(made, of) == ["t/b"]


def test_who_is_known_to_work_again_is_let_in_at_once() -> None:
    """The watch of a pool saw it come back; what still fails of its former life does not count."""
    made, _, of = breakers("a", "b")
    late = take(made)
    fail(made, 5)
    assert ids(made, of) == ["t/b"]
    made.cleared("t/a")
    late.failure()
    assert ids(made, of) == ["t/a", "t/b"]
    fail(made, 4)
    assert made.state("t/a") == "closed"
    fail(made, 1)
    assert made.state("t/a") == "open"
    made.cleared("t/stranger")


def test_a_whole_fleet_is_put_together_once() -> None:
    """Until something is ejected; a pool's replicas are asked for each time."""
    made, _, of = breakers("a", "b")
    targets = {"t": of}
    whole = made.fleet(targets)
    assert made.fleet(targets) is whole
    fail(made, 5)
    assert [each.deployment_id for each in made.fleet(targets)["t"]] == ["t/b"]
    made.cleared("t/a")
    assert made.fleet(targets) == whole
    pooled = {"t": msgspec.structs.replace(of, pool="own")}
    made.ready = lambda target: target.deployments[:1]
    assert len(made.fleet(pooled)["t"]) == 1
    made.ready = lambda target: target.deployments
    assert len(made.fleet(pooled)["t"]) == 2


def test_failures_of_one_key_open_it_for_that_key() -> None:
    """Another key of the team, and other teams, are served; everyone sees it closed."""
    made, clock, of = breakers("a")
    fail(made, 5, caller=ANN)
    assert serves(made, of, ANN, AMY, BOB) == [False, True, True]
    assert made.try_acquire("t/a", ANN) is None
    found = made.describe("t/a")
    assert (found.state, found.opens_again_s, found.only_for) == ("closed", None, 1)
    take(made, caller=BOB).success()
    assert serves(made, of, ANN, BOB) == [False, True]
    clock.now += 30
    probe = take(made, caller=ANN)
    assert made.try_acquire("t/a", ANN) is None
    probe.failure()
    clock.now += 59
    assert serves(made, of, ANN, AMY) == [False, True]
    clock.now += 1
    take(made, caller=ANN).success()
    assert serves(made, of, ANN, AMY, BOB) == [True, True, True]
    assert made.describe("t/a").only_for == 0


def test_failures_of_two_keys_of_a_team_open_it_for_the_team() -> None:
    """Other teams are served."""
    made, _, of = breakers("a")
    fail(made, 3, caller=ANN)
    fail(made, 2, caller=AMY)
    assert serves(made, of, ANN, AMY, ("team_a", "key_new"), BOB) == [False, False, False, True]


def test_failures_of_other_teams_open_it_for_everyone() -> None:
    """One that fails for others, too, is ill: nobody has to find that out again. One failure alone is an accident."""
    made, clock, of = breakers("a")
    fail(made, 5, caller=ANN)
    fail(made, 1, caller=BOB)
    assert serves(made, of, ANN, BOB, EVE) == [False, True, True]
    fail(made, 1, caller=EVE)
    assert made.state("t/a") == "open"
    assert serves(made, of, ANN, BOB, EVE) == [False, False, False]
    clock.now += 60
    take(made, caller=EVE).success()
    assert made.state("t/a") == "closed"


def test_what_no_request_can_have_caused_opens_it_for_everyone() -> None:
    """A refused connection says the same to all."""
    made, _, of = breakers("a")
    for _ in range(5):
        take(made, caller=ANN).failure(of_everyone=True)
    assert serves(made, of, ANN, BOB) == [False, False]


def test_one_team_alone_cannot_keep_it_open() -> None:
    """A failed probe keeps its own key away; the next one is another team's, and two of these open it again."""
    made, clock, of = breakers("a")
    fail(made, 3, caller=ANN)
    fail(made, 2, caller=BOB)
    clock.now += 30
    take(made, caller=ANN).failure()
    assert made.state("t/a") == "half-open"
    assert serves(made, of, ANN, BOB) == [False, True]
    take(made, caller=BOB).success()
    assert made.state("t/a") == "closed"
    assert serves(made, of, ANN, BOB) == [False, True]
    fail(made, 3, caller=EVE)
    fail(made, 2, caller=BOB)
    clock.now += 60
    take(made, caller=EVE).failure()
    take(made, caller=BOB).failure()
    assert made.state("t/a") == "open"


def test_a_request_is_no_probe_of_what_failed_it() -> None:
    """Another request is."""
    made, clock, _ = breakers("a")
    fail(made, 5)
    clock.now += 30
    assert made.try_acquire("t/a", ANN, tried={"t/a"}) is None
    assert made.try_acquire("t/a", ANN, tried={"t/b"}) is not None


def test_a_probe_that_is_overtaken_gives_its_place_back() -> None:
    """It closed for everyone while a team's own probe was under way, whose report then counts for nothing."""
    made, clock, of = breakers("a")
    fail(made, 5, caller=ANN)
    clock.now += 30
    probe = take(made, caller=ANN)
    fail(made, 1)
    probe.failure()
    assert made.state("t/a") == "open"
    clock.now += 30
    take(made, caller=BOB).success()
    assert serves(made, of, ANN) == [True]


def test_a_probe_that_is_refused_gives_its_place_back() -> None:
    """A team's own probe meets a refusal that is everyone's: once that is mended the team is probed again."""
    made, clock, of = breakers("a")
    fail(made, 5, caller=ANN)
    clock.now += 30
    take(made, caller=ANN).refused("credit")
    clock.now += 30
    take(made, caller=BOB).success()
    take(made, caller=ANN).success()
    assert serves(made, of, ANN, BOB) == [True, True]


def test_a_refusal_that_operators_must_mend_ejects_at_once() -> None:
    """For everyone, with its reason, also where half of the deployments would be too many; until it is probed well."""
    made, clock, of = breakers("a", "b")
    for name in ("a", "b"):
        take(made, f"t/{name}", ANN).refused("credit")
    assert serves(made, of, ANN, BOB) == [False, False]
    assert made.absence(of, BOB) == Absence("operator", "credit", 30.0)
    assert (made.describe("t/a").state, made.describe("t/a").why) == ("open", "credit")
    clock.now += 30
    take(made, caller=ANN).refused("quota")
    clock.now += 59
    assert ids(made, of, BOB) == ["t/b"]
    clock.now += 1
    take(made, caller=BOB).success()
    assert ids(made, of) == ["t/a", "t/b"]
    assert made.absence(of) is None


@pytest.mark.parametrize(("told_s", "lasts_s"), [(0.25, 0.25), (20.0, 20.0), (86_400.0, 300.0)])
def test_a_pace_is_kept_for_as_long_as_it_is_told(told_s: float, lasts_s: float) -> None:
    """For everyone whose requests met it, and no longer than the longest ejection; the circuit stays closed."""
    made, clock, of = breakers("a", "b")
    for name in ("a", "b"):
        for caller in (ANN, BOB):
            take(made, f"t/{name}", caller).paced(told_s)
    assert serves(made, of, ANN, BOB) == [False, False]
    assert made.state("t/a") == "paced"
    absence = made.absence(of)
    assert absence is not None
    assert absence.again_s == pytest.approx(lasts_s)
    assert (absence.owner, absence.reason) == ("pace", "rate")
    clock.now += lasts_s * 0.99
    assert ids(made, of) == []
    clock.now += lasts_s * 0.02
    assert ids(made, of) == ["t/a", "t/b"]
    assert made.fleet({"t": of}) == {"t": of.deployments}
    assert made.describe("t/a").why == ""


def test_an_untold_pace_is_guessed_longer_each_time() -> None:
    """From a second up to half a minute, and anew after a success."""
    made, clock, _ = breakers("a")
    for expected_s in (1, 2, 4, 8, 16, 30, 30):
        take(made).paced(None)
        assert made.describe("t/a").opens_again_s == expected_s
        clock.now += expected_s
    take(made).success()
    take(made).paced(None)
    assert made.describe("t/a").opens_again_s == 1


def test_the_longest_pace_counts() -> None:
    """Answers that were under way tell shorter ones."""
    made, _, _ = breakers("a")
    early, late = take(made), take(made)
    early.paced(20.0)
    late.paced(1.0)
    assert made.describe("t/a").opens_again_s == 20


def test_what_fails_is_known_before_it_is_ejected() -> None:
    """Three failures in a row, to those who may have caused them; a success ends it."""
    made, _, _ = breakers("a", "b")
    fail(made, FAILING_AFTER, caller=ANN)
    assert [made.is_failing("t/a", each) for each in (ANN, AMY, BOB)] == [True, False, False]
    take(made).success()
    assert not made.is_failing("t/a", ANN)
    fail(made, 2, caller=ANN)
    fail(made, 2, caller=BOB)
    assert [made.is_failing("t/a", each) for each in (ANN, AMY, BOB, EVE)] == [True, True, True, True]


def test_however_many_keys_fail_few_are_remembered() -> None:
    """Each with a success of another one before it, so that the circuit never opens for everyone."""
    made, _, of = breakers("a")
    for number in range(200):
        fail(made, 5, caller=(f"team_{number}", "k"))
        take(made).success()
    assert made.describe("t/a").only_for == 64
    assert serves(made, of, ("team_199", "k"), ("team_0", "k")) == [False, True]


def test_who_does_not_come_back_is_forgotten() -> None:
    """Long after its key might have, looking costs nothing again."""
    made, clock, of = breakers("a")
    fail(made, 5, caller=ANN)
    clock.now += 331
    assert ids(made, of, BOB) == ["t/a"]
    assert made.fleet({"t": of}) == {"t": of.deployments}
    assert made.describe("t/a").only_for == 0
    assert made.telling()["t/a"].failures == 5


@pytest.mark.parametrize(
    "change", [{"api_key": "sk-new"}, {"base_url": "http://elsewhere/v1"}, {"upstream_model": "m2"}]
)
def test_a_reload_with_another_key_or_address_begins_anew(change: dict[str, str]) -> None:
    """What was learnt of a refused key says nothing of the one that takes its place; one that stays keeps its state."""
    made, _, of = breakers("a", "b")
    for each in of.deployments:
        take(made, each.deployment_id).refused("key")
    made.adopt([of])
    assert ids(made, of) == []
    first, second = of.deployments
    mended = msgspec.structs.replace(of, deployments=(msgspec.structs.replace(first, **change), second))
    made.adopt([mended])
    assert ids(made, mended) == ["t/a"]
    assert (made.state("t/a"), made.state("t/b")) == ("closed", "open")
    take(made, "t/a").refused("key")
    assert ids(made, mended) == []


@pytest.mark.parametrize("of_a_name", [False, True])
def test_what_many_attempts_at_once_are_told_is_one_refusal(of_a_name: bool) -> None:
    """Twenty calls in flight that are refused without a time set it aside for a second, as one does, and the next one for two."""
    made, clock, _ = breakers("a")
    name = "w/busy" if of_a_name else ""

    def permit() -> Permit:
        taken = made.try_acquire("t/a", ANN, name=name)
        assert taken is not None
        return taken

    for each in [permit() for _ in range(20)]:
        each.paced(None)
    assert made.try_acquire("t/a", AMY, name=name) is None
    clock.now += 1.0
    permit().paced(None)
    clock.now += 1.9
    assert made.try_acquire("t/a", AMY, name=name) is None
    clock.now += 0.1
    permit().success()


def test_a_pace_that_is_told_too_short_again_and_again_is_not_believed() -> None:
    """A provider that says 0 and goes on refusing is asked once a second, not by every request."""
    made, clock, of = breakers("a")
    for _ in range(3):
        take(made).paced(0.0)
        assert ids(made, of) == ["t/a"]
    take(made).paced(0.0)
    assert ids(made, of) == []
    clock.now += 1.0
    take(made).success()
    take(made).paced(0.0)
    assert ids(made, of) == ["t/a"]


def test_what_one_team_is_refused_for_the_pace_keeps_no_other_away() -> None:
    """A prompt that is larger than what is left of a minute's tokens says nothing of others; another team's refusal does."""
    made, clock, of = breakers("a")
    take(made, caller=ANN).paced(60.0)
    assert serves(made, of, ANN, AMY, BOB, EVE) == [False, False, True, True]
    assert made.absence(of, AMY) == Absence("pace", "rate", 60.0)
    assert (made.state("t/a"), made.describe("t/a").only_for) == ("closed", 1)
    take(made, caller=BOB).success()
    take(made, caller=BOB).paced(5.0)
    assert serves(made, of, ANN, BOB, EVE) == [False, False, False]
    assert made.state("t/a") == "paced"
    assert made.absence(of, EVE) == Absence("pace", "rate", 5.0)
    clock.now += 5.0
    assert serves(made, of, ANN, BOB, EVE) == [False, True, True]
    clock.now += 55.0
    assert serves(made, of, ANN, BOB, EVE) == [True, True, True]
    assert made.telling() == {}


def below_a_wildcard(name: str) -> Target:
    """What `w/*` stands for under this name; its deployment is the wildcard's."""
    fields = {
        each: getattr(target("a"), each) for each in ("provider", "tiers", "price", "capabilities", "deployments")
    }
    return Target(
        target_id=name,
        pattern="w/*",
        max_context_tokens=1_000,
        max_output_tokens=100,
        capability=0.5,
        routing_weight=1.0,
        **fields,
    )


def test_a_pace_below_a_wildcard_is_that_of_the_name_alone() -> None:
    """Providers limit each model by itself: the other names of a wildcard are called as before, and this one after its time."""
    clock = Clock()
    made, whole = Breakers(BreakerConfig(), clock), below_a_wildcard("w/*")
    made.adopt([whole])
    busy, free = below_a_wildcard("w/busy"), below_a_wildcard("w/free")

    def called() -> list[str]:
        fleet = made.fleet({"busy": busy, "free": free}, ANN)
        assert [bool(fleet["busy"]), bool(fleet["free"])] == [bool(ids(made, each, ANN)) for each in (busy, free)]
        return [name for name, found in fleet.items() if found]

    permit = made.try_acquire("t/a", ANN, name="w/busy")
    assert permit is not None
    permit.paced(20.0)
    assert called() == ["free"]
    assert made.try_acquire("t/a", AMY, name="w/busy") is None
    assert made.absence(busy, AMY) == Absence("pace", "rate", 20.0)
    assert made.absence(free, BOB) is None
    clock.now += 20.0
    assert called() == ["busy", "free"]


def test_guesses_below_a_wildcard_grow_for_each_name_and_are_bounded() -> None:
    """A name's success begins its guesses anew, and callers who make up names cost no memory without end."""
    clock = Clock()
    made = Breakers(BreakerConfig(), clock)
    made.adopt([below_a_wildcard("w/*")])

    def refused(name: str) -> float:
        permit = made.try_acquire("t/a", ANN, name=name)
        assert permit is not None
        permit.paced(None)
        absence = made.absence(below_a_wildcard(name), ANN)
        assert absence is not None
        clock.now += absence.again_s
        return absence.again_s

    assert [refused("w/busy") for _ in range(3)] == [1.0, 2.0, 4.0]
    well = made.try_acquire("t/a", ANN, name="w/busy")
    assert well is not None
    well.success()
    assert refused("w/busy") == 1.0
    for number in range(2_000):
        refused(f"w/made-up-{number}")
    assert len(made._names) <= 1_024


class BreakerMachine(RuleBasedStateMachine):
    """Any order of attempts, reports and waiting."""

    @initialize(names=st.integers(1, 5))
    def begin(self, names: int) -> None:
        self.made, self.clock, self.of = breakers(*"abcde"[:names])
        self.flying: list[tuple[str, Permit, bool]] = []
        self.targets = {"t": self.of}

    @property
    def states(self) -> dict[str, BreakerState]:
        return {each.deployment_id: self.made.state(each.deployment_id) for each in self.of.deployments}

    @rule(which=st.integers(0, 4))
    def acquire(self, which: int) -> None:
        deployment_id = self.of.deployments[which % len(self.of.deployments)].deployment_id
        state = self.made.state(deployment_id)
        looked = deployment_id in ids(self.made, self.of)
        permit = self.made.try_acquire(deployment_id)
        assert (permit is not None) == looked
        if permit is not None:
            assert state not in {"open", "paced"}
            self.flying.append((deployment_id, permit, state == "half-open"))

    @rule(which=st.integers(0, 4), caller=st.sampled_from([ANN, AMY, BOB, EVE]))
    def acquire_for(self, which: int, caller: Scope) -> None:
        deployment_id = self.of.deployments[which % len(self.of.deployments)].deployment_id
        state = self.made.state(deployment_id)
        looked = deployment_id in ids(self.made, self.of, caller)
        permit = self.made.try_acquire(deployment_id, caller)
        assert (permit is not None) == looked
        if permit is not None:
            self.flying.append((deployment_id, permit, state == "half-open"))

    @rule(which=st.integers(0, 100))
    def clear(self, which: int) -> None:
        known = sorted(self.states)
        self.made.cleared(known[which % len(known)])

    @precondition(lambda self: self.flying)
    @rule(
        which=st.integers(0, 100), ending=st.sampled_from(["success", "failure", "failure", "cut", "abandon", "paced"])
    )
    def report(self, which: int, ending: str) -> None:
        _, permit, _ = self.flying.pop(which % len(self.flying))
        if ending == "cut":
            permit.success()
            permit.failure()
        elif ending == "paced":
            permit.paced(5.0)
        else:
            getattr(permit, ending)()

    @rule(seconds=st.sampled_from([0.5, 10.0, 30.0, 300.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def one_probe(self) -> None:
        """At most one probe of a deployment is under way while it is half-open."""
        for deployment_id, state in self.states.items():
            probes = sum(probe and flown == deployment_id for flown, _, probe in self.flying)
            assert probes <= 1 or state != "half-open"

    @invariant()
    def half_in_use(self) -> None:
        """Never more than half of several deployments are out."""
        states = list(self.states.values())
        out = sum(state not in {"closed", "paced"} for state in states)
        assert out <= max(1, len(states) // 2)

    @invariant()
    def fleet_is_what_is_available(self) -> None:
        """However lately anything was ejected or came back."""
        for caller in (EVERYONE, ANN, BOB):
            assert self.made.fleet(self.targets, caller) == {"t": self.made.available(self.of, caller)}

    @invariant()
    def always_a_way_back(self) -> None:
        """An ejection never outlasts the cap."""
        now = self.clock.now
        self.clock.now += 300
        assert {"open", "paced"}.isdisjoint(self.states.values())
        self.clock.now = now


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_the_last_faults_are_kept_for_people() -> None:
    """The newest first, a bounded number, also across a reload; they do not move the breaker."""
    made, clock, of = breakers("a")
    for number in range(FAULTS_KEPT + 3):
        clock.now += 1
        take(made).record_fault("UpstreamUnavailable", 500 + number, counted=True)
    made.adopt([of])
    clock.now += 1
    found = made.describe("t/a")
    assert [fault.status for _, fault in found.faults] == [510 - each for each in range(FAULTS_KEPT)]
    assert found.faults[0][0] == pytest.approx(1)
    assert (found.state, found.failures, found.opens_again_s) == ("closed", 0, None)


def test_what_people_are_told_of_an_open_one() -> None:
    """How long it stays open, and how often it was ejected; one that is not known is closed."""
    made, clock, _ = breakers("a")
    fail(made, 5)
    clock.now += 10
    found = made.describe("t/a")
    assert (found.state, found.ejections) == ("open", 1)
    assert found.opens_again_s == pytest.approx(20)
    assert made.describe("t/z").state == "closed"


def rated(clock: Clock, **limits: int) -> Breakers:
    made = Breakers(BreakerConfig(), clock)
    of = target("a")
    limited = msgspec.structs.replace(of.deployments[0], **limits)
    made.adopt([msgspec.structs.replace(of, deployments=(limited,))])
    return made


def test_what_a_deployment_may_be_sent_in_a_minute_is_a_pace() -> None:
    """Nobody is sent there until there is some again; the reason and the wait are told."""
    clock = Clock()
    made, of = rated(clock, requests_per_minute=1), target("a")
    take(made)
    assert made.try_acquire("t/a") is None
    why = made.absence(of)
    assert why is not None
    assert (why.owner, why.reason, why.again_s) == ("pace", "limit", 60.0)
    assert serves(made, of, ANN) == [False]
    clock.now += 60.0
    assert serves(made, of, ANN) == [True]
    take(made)


def test_tokens_that_an_answer_did_not_use_are_given_back() -> None:
    """And those that it used beyond what was expected are taken."""
    clock = Clock()
    made = rated(clock, tokens_per_minute=1_000)
    permit = made.try_acquire("t/a", tokens=100)
    assert permit is not None
    permit.used(10)
    again = made.try_acquire("t/a", tokens=90)
    assert again is not None
    assert made.try_acquire("t/a", tokens=90) is None


def test_a_reload_keeps_what_a_rate_has_used_unless_it_is_another() -> None:
    """The same limits go on; others begin anew."""
    clock = Clock()
    made = rated(clock, requests_per_minute=1)
    take(made)
    of = target("a")
    for per_minute, taken in ((1, True), (2, False)):
        limited = msgspec.structs.replace(of.deployments[0], requests_per_minute=per_minute)
        made.adopt([msgspec.structs.replace(of, deployments=(limited,))])
        assert (made.try_acquire("t/a") is None) is taken
        clock.now += 1.0 if taken else 0.0


def test_a_sound_deployment_is_hardly_ever_ejected() -> None:
    """Three in a hundred of its attempts fail by chance. Five in a row do once in 42 million attempts; ten requests a second are 50 days of
    that, and then one deployment rests for 30 s.
    """
    rng = random.Random("sound")
    made, clock, _ = breakers("a")
    for _ in range(100_000):
        clock.now += 0.1
        permit = take(made)
        if rng.random() < 0.03:
            permit.failure()
        else:
            permit.success()
    assert made.state("t/a") == "closed"
