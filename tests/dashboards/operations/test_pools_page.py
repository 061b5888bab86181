"""A pool's page: how it was scaled."""

from pathlib import Path

import pytest
from sqlalchemy import update
from sqlmodel import col

from api.web.gateway import Gateway
from dashboards.operations.scaling_charts import scaling_charts
from selfhosted.config import ScaleConfig
from selfhosted.scale.history import Step
from selfhosted.scale.policy import ScalePolicy, steps_of
from selfhosted.scale.signals import Signals
from selfhosted.scale.target import Targets
from selfhosted.tables import PoolTarget
from tests.processes import until
from tests.running_gateway import model, running_gateway
from tests.signed_in import signed_in

MIDNIGHT = 1_699_833_600.0
POOL = "/dashboard/operations/pools/gpus"


def learnt() -> str:
    """The state of a policy after half an hour of 1,000 tokens a second, and then of 3,000."""
    policy = ScalePolicy(ScaleConfig(), carries=1_000.0)
    for tick in range(260):
        at_s = tick * 15.0
        work = 1_000.0 if at_s < 1_800 else 3_000.0
        policy.decide(Signals(at_s=at_s, wall_s=MIDNIGHT + at_s, ready=2, kv_used=0.1, input_tokens_per_s=work))
    return policy.state()


def test_what_came_stands_beside_what_was_expected_of_that_time() -> None:
    """In both charts, at the same moments."""
    demand, replicas = scaling_charts(steps_of(learnt()))
    expected, came = (series.values for series in demand.series)
    assert demand.x == replicas.x
    assert demand.x[0] == MIDNIGHT * 1_000_000
    assert (came[0], came[-1]) == (1_000, 3_000)
    assert expected[0] is None
    assert expected[-1] == 3_000
    ordered, ready = (series.values for series in replicas.series)
    assert ordered[-1] == 3
    assert set(ready) == {2}


def test_before_the_first_step_there_is_no_chart() -> None:
    """Nor where the state cannot be read."""
    assert scaling_charts([]) == []
    assert steps_of("{") == []
    assert "nothing was expected" in scaling_charts([Step(MIDNIGHT, 5.0, None, 1, 1)])[0].caption


def test_how_often_the_forecast_was_enough_is_said() -> None:
    """And how far it was off, where it was not; of what nothing was expected of, nothing."""
    steps = [Step(MIDNIGHT + at * 300, came, expected, 1, 1) for at, (came, expected) in enumerate(_CAME)]
    assert scaling_charts(steps)[0].caption.endswith(
        " No more came than was expected in 2 of 3 such times, at worst 1.5 times as much."
    )
    assert scaling_charts(steps[:3])[0].caption.endswith(" in 2 of 2 such times.")
    assert "such times" not in scaling_charts(steps[:1])[0].caption


_CAME = ((5.0, None), (90.0, 100.0), (100.0, 100.0), (150.0, 100.0))


@pytest.mark.asyncio
async def test_an_operator_sees_how_a_pool_was_scaled(tmp_path: Path) -> None:
    """The charts of the pool's own row, and one sentence before there is any."""
    owned = {key: value for key, value in model("own", []).items() if key != "deployments"}
    pool = {
        "name": "gpus",
        "engine": "vllm",
        "targets": ["own"],
        "replicas": [{"name": "one", "url": "http://127.0.0.1:9"}],
        "scale": {"max_replicas": 2},
    }
    async with running_gateway(tmp_path, [owned], selfhosted={"pools": [pool]}) as running:
        gateway: Gateway = running.parts
        targets = Targets(gateway.database)

        async def saved() -> bool:
            return bool(await targets.state("gpus"))

        await until(saved)
        async with signed_in(running, role="operator") as browser:
            assert "Nothing was decided for five minutes yet." in (await browser.get(POOL)).text
            async with gateway.database.begin() as connection:
                await connection.execute(
                    update(PoolTarget).where(col(PoolTarget.pool) == "gpus").values(state=learnt())
                )
            page = await browser.get(POOL)
            assert page.status == 200
            for words in ("Work expected and come", "Replicas ordered and ready", "Expected"):
                assert words in page.text
