"""Targets that are set aside for hard budgets, over the real link: what one worker found, all know."""

import tempfile
from pathlib import Path

from gateway.link.hub import Hub
from gateway.link.link import Hello, Link
from gateway.link.worker_questions import VOCABULARY
from gateway.wiring.overruns import exchange_overruns, share_overruns
from proxy.plan.overruns import Overruns
from tests.processes import until


async def test_what_one_worker_found_all_know() -> None:
    """The other worker, the control plane, and a worker that starts later; the day ends for all at once."""
    now = [100.0]

    def worker(path: Path, boot_id: str) -> tuple[Link, Overruns]:
        link, overruns = Link(path, VOCABULARY), Overruns(lambda: now[0])
        exchange_overruns(link, overruns)
        link.start(Hello(boot_id, 1))
        return link, overruns

    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        path, hub, control = Path(folder) / "link.sock", Hub(VOCABULARY), Overruns(lambda: now[0])
        share_overruns(hub, control)
        await hub.start(path)
        (one, found), (two, told) = worker(path, "one"), worker(path, "two")
        links = [one, two]
        try:
            await one.synced(30)
            await two.synced(30)
            found.record("gpt", "wrote 3,000 tokens")
            await until(lambda: bool(told.current()))
            control.record("claude", "told 250,000 prompt tokens")
            await until(lambda: len(found.current()) == 2)
            late, learnt = worker(path, "late")
            links.append(late)
            await late.synced(30)
            await until(lambda: len(learnt.current()) == 2)
            everywhere = {"gpt": "wrote 3,000 tokens", "claude": "told 250,000 prompt tokens"}
            assert found.current() == told.current() == learnt.current() == control.current() == everywhere
            now[0] += 86_401
            assert not any(each.current() for each in (found, told, learnt, control))
        finally:
            for link in links:
                await link.aclose()
            await hub.aclose()


def test_what_is_learnt_is_not_told_again_and_stays_bounded() -> None:
    """Two processes that tell each other do not go on for ever, nor does their memory grow."""
    told: list[str] = []
    one, two = Overruns(lambda: 0.0), Overruns(lambda: 0.0)
    two.tell = lambda target_id, _overrun: told.append(target_id)
    for number in range(1_200):
        one.record(f"name-{number}", "wrote on")
        two.learn(one.known)
    assert not told
    assert len(one.known) == len(two.known) == 1_000
