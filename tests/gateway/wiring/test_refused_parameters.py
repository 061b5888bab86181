"""Parameters that targets refused, over the real link: what one worker met, all know."""

import tempfile
from pathlib import Path

from gateway.link.hub import Hub
from gateway.link.link import Hello, Link
from gateway.link.worker_questions import VOCABULARY
from gateway.wiring.refused_parameters import exchange_refused_parameters, share_refused_parameters
from proxy.plan.refused_parameters import RefusedParameters
from tests.processes import until


async def test_what_one_worker_met_all_know() -> None:
    """The other worker, the control plane, whose pages tell it, and a worker that starts later; the day ends for all at once."""
    now = [100.0]

    def worker(path: Path, boot_id: str) -> tuple[Link, RefusedParameters]:
        link, refused = Link(path, VOCABULARY), RefusedParameters(lambda: now[0])
        exchange_refused_parameters(link, refused)
        link.start(Hello(boot_id, 1))
        return link, refused

    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        path, hub, control = Path(folder) / "link.sock", Hub(VOCABULARY), RefusedParameters(lambda: now[0])
        share_refused_parameters(hub, control)
        await hub.start(path)
        (one, met), (two, told) = worker(path, "one"), worker(path, "two")
        links = [one, two]
        try:
            await one.synced(30)
            await two.synced(30)
            met.record("gpt", "temperature")
            await until(lambda: bool(told.current()))
            told.record("gpt", "seed")
            await until(lambda: len(met.current()["gpt"]) == 2)
            late, learnt = worker(path, "late")
            links.append(late)
            await late.synced(30)
            await until(lambda: bool(learnt.current()))
            everywhere = {"gpt": {"temperature", "seed"}}
            assert met.current() == told.current() == learnt.current() == control.current() == everywhere
            now[0] += 86_401
            assert not any(each.current() for each in (met, told, learnt, control))
        finally:
            for link in links:
                await link.aclose()
            await hub.aclose()
