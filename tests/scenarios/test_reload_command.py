"""`weighbridge reload` at a gateway with two workers: cases as of h2o #770, where a bad file reloads without a word."""

from pathlib import Path

import pytest

from tests.processes import make_site, oracle, serving
from tests.running_gateway import model


@pytest.mark.long
async def test_what_was_reloaded_is_said(tmp_path: Path) -> None:
    """Keys that changed, keys that need a restart, a file that is refused, and nobody there."""
    with oracle(tmp_path) as upstream:
        models = [model("one", [upstream.deployment("ok", api_key="env:TEST_KEY")])]
        site = await make_site(tmp_path, models, variables={"TEST_KEY": "sk-x"})
        nobody = await site.run("reload")
        assert (nobody.returncode, "no gateway runs" in nobody.stderr) == (1, True)
        async with serving(site, "gateway", "--workers", "2"):
            site.configure([*models, model("two", [upstream.deployment("ok")])])
            done = await site.run("reload")
            assert (done.returncode, done.stderr) == (0, "")
            assert "reloaded by 3 processes; providers.models changed" in done.stdout
            assert "changed by a restart: env:TEST_KEY" in done.stdout
            site.configure(models, server={"drain_s": 40, "ping_after_s": 5})
            done = await site.run("reload")
            assert (done.returncode, done.stderr) == (3, "needs a restart: server.drain_s\n")
            assert "providers.models, server.ping_after_s changed" in done.stdout
            site.config_path.write_text("providers: {models: [{}]}\n")
            done = await site.run("reload")
            assert done.returncode == 1
            assert "refused, the old configuration stays" in done.stderr
        assert (await site.run("reload")).returncode == 1
