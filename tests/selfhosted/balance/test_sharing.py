"""What processes of a host tell each other of the prompts that they sent."""

import msgspec
import pytest

from selfhosted.balance.balancer import Balancer
from selfhosted.balance.blocks import HASHES
from selfhosted.balance.load import Lease
from selfhosted.balance.sharing import PromptsSent, SentPrompt, SentPrompts, ToldPrompts
from selfhosted.replica import PoolSnapshot
from tests.selfhosted.balance.pool import ask, balancer, pool, prompt

_SNAPSHOT = pool("a", "b", "c")


class Process:
    """A process that sends to the pool, and hears of others."""

    def __init__(self, seed: int) -> None:
        self.balancer = balancer(seed)
        self.sent = SentPrompts("p")
        self.told = ToldPrompts(self.balancer)
        self.pick(0)

    def pick(self, number: int) -> str:
        choice = self.balancer.pick(ask(*prompt(number)), _SNAPSHOT, None, 0.0)
        assert choice is not None
        return choice.replica

    def send(self, number: int) -> Lease:
        request = ask(*prompt(number))
        choice = self.balancer.pick(request, _SNAPSHOT, None, 0.0)
        assert choice is not None
        lease = self.balancer.take(choice, request, 0.0)
        self.sent.sent(lease)
        return lease

    def end(self, lease: Lease) -> None:
        lease.first_token(1.0)
        self.sent.started(lease)
        lease.end(2.0)
        self.sent.ended(lease)


def handed_on(message: PromptsSent | None, process: str = "w1") -> PromptsSent:
    """As the link carries it, with the process's id."""
    assert message is not None
    message = msgspec.structs.replace(message, process=process)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=PromptsSent)


def requests(of: Balancer, snapshot: PoolSnapshot = _SNAPSHOT) -> dict[str, int]:
    return {replica.name: of.load(replica.name).requests for replica in snapshot.replicas}


@pytest.mark.parametrize("number", range(1, 8))
def test_a_conversation_goes_on_where_another_process_began_it(number: int) -> None:
    """Whoever began it: the next turn goes where its prompt is cached, though this process never sent it."""
    first, second = Process(1), Process(2)
    lease = first.send(number)
    lease.first_token(0.0)
    first.sent.started(lease)
    second.told.hear(handed_on(first.sent.told()), 0.0)
    assert second.pick(number) == lease.replica
    assert requests(second.balancer) == requests(first.balancer)
    first.end(lease)
    second.told.hear(handed_on(first.sent.told()), 2.0)
    assert set(requests(second.balancer).values()) == {0}
    assert len(second.told) == 0
    assert second.pick(number) == lease.replica


def test_what_is_told_is_told_once() -> None:
    """With nothing new there is nothing to tell, and nothing open needs no list."""
    process = Process(1)
    assert process.sent.told(whole=True) is None
    lease = process.send(1)
    assert process.sent.told() is not None
    assert process.sent.told() is None
    assert handed_on(process.sent.told(whole=True)).open == (1,)
    process.end(lease)
    assert handed_on(process.sent.told(whole=True)).open == ()
    assert process.sent.told(whole=True) is None


def test_a_lost_end_is_mended_by_the_list_of_what_is_open() -> None:
    """One message is lost; the next list ends what is not in it, and nothing else."""
    first, second = Process(1), Process(2)
    ends, stays = first.send(1), first.send(2)
    second.told.hear(handed_on(first.sent.told()), 0.0)
    first.end(ends)
    first.sent.told()
    assert len(second.told) == 2
    second.told.hear(handed_on(first.sent.told(whole=True)), 2.0)
    assert len(second.told) == 1
    assert sum(requests(second.balancer).values()) == 1
    assert requests(second.balancer)[stays.replica] == 1


def test_a_process_that_is_gone_leaves_no_load() -> None:
    """Nothing is heard of it for long: its requests are over. Those of another one are not."""
    dead, alive, hears = Process(1), Process(2), Process(3)
    dead.send(1)
    alive.send(2)
    hears.told.hear(handed_on(dead.sent.told(), "dead"), 0.0)
    hears.told.hear(handed_on(alive.sent.told(), "alive"), 0.0)
    hears.told.hear(handed_on(alive.sent.told(whole=True), "alive"), 4.0)
    hears.told.expire(6.0)
    assert sum(requests(hears.balancer).values()) == 1
    hears.told.expire(60.0)
    assert set(requests(hears.balancer).values()) == {0}


def test_what_one_process_learned_of_speed_serves_who_learns_nothing() -> None:
    """The control plane sees no first tokens of its own. What a process has learned itself goes before what it is told."""
    first, second = Process(1), Process(2)
    first.end(first.send(1))
    learned = first.balancer.learned_speed
    assert learned is not None
    told = PromptsSent(pool="p", hashes=HASHES, reads_per_s=4_321.0)
    first.told.hear(told, 2.0)
    second.told.hear(told, 2.0)
    assert first.balancer.learned_speed == learned
    assert second.balancer.learned_speed is None
    assert second.send(2).load.rate == pytest.approx(4_321.0)


def test_others_hashes_mean_nothing() -> None:
    """A process that hashes by another key, a replica that is not known, and half a hash count for nothing."""
    hears = Process(1)
    whole = SentPrompt(1, "a", b"12345678", 128.0, 128, 10)
    for message in (
        PromptsSent(pool="p", hashes=HASHES + 1, process="w", sent=(whole,)),
        PromptsSent(pool="p", hashes=HASHES, process="w", sent=(msgspec.structs.replace(whole, replica="z"),)),
        PromptsSent(pool="p", hashes=HASHES, process="w", sent=(msgspec.structs.replace(whole, blocks=b"1234"),)),
    ):
        hears.told.hear(message, 0.0)
    assert len(hears.told) == 0
    assert set(requests(hears.balancer).values()) == {0}
