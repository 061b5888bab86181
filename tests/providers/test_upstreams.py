"""One upstream in front of all wires."""

import pytest

from providers.errors import UpstreamRefusedUs
from providers.upstream import Upstream
from providers.upstreams import Upstreams
from testing.scripted.upstream import Script, ScriptedUpstream
from tests.providers.calls import deployment, talk, text_of, upstream_call


class Closing(ScriptedUpstream):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


async def test_the_kind_picks_the_wire() -> None:
    """Each deployment is spoken to by its kind's upstream."""
    upstreams: Upstream = Upstreams(
        {"scripted": ScriptedUpstream(Script(tokens=1)), "vllm": ScriptedUpstream(Script(tokens=2))}
    )
    assert text_of(await talk(upstreams, upstream_call(deployment("scripted")))) == " w0"
    assert text_of(await talk(upstreams, upstream_call(deployment("vllm")))) == " w0 w1"


async def test_a_kind_without_an_upstream() -> None:
    """A deployment that nobody can speak to is our fault, and another candidate may serve."""
    with pytest.raises(UpstreamRefusedUs) as raised:
        await talk(Upstreams({}), upstream_call(deployment("litellm")))
    assert raised.value.fall_back


async def test_each_is_closed_once() -> None:
    """An upstream that serves several kinds is closed once."""
    shared = Closing()
    await Upstreams({"openai": shared, "azure": shared}).aclose()
    assert shared.closed == 1
