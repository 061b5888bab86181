"""What the chart's containers run, run: their arguments, configuration, variables, probes and hooks, as processes without a cluster."""

import asyncio
import base64
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from tests.deploy.chart import Manifest, find, laid_over, needs_helm, rendered, values_of
from tests.processes import READY_WITHIN_S, ROOT, Oracle, oracle

pytestmark = [needs_helm, pytest.mark.timeout(900)]
_LIMIT_S: Final = 300
_PEPPER: Final = base64.b64encode(bytes(32)).decode()


class _Container:
    """The one container of a pod: what it would be started with, its folders standing for its volumes."""

    def __init__(self, pod: Manifest, folder: Path, secrets: dict[str, str], **variables: str) -> None:
        (self.spec,) = pod["spec"]["containers"]
        self._folder = folder
        given = {each["name"]: self._value(each, secrets) for each in self.spec["env"]}
        # The image has the program in its PATH; the rest of the environment is what the pod says.
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder),
            **given,
            **variables,
        }

    def _value(self, variable: dict[str, Any], secrets: dict[str, str]) -> str:
        if "valueFrom" in variable:
            return secrets[variable["valueFrom"]["secretKeyRef"]["key"]]
        return self.path(str(variable["value"]))

    def path(self, inside: str) -> str:
        """A path of the container outside of it."""
        for mount in self.spec["volumeMounts"]:
            if inside.startswith(mount["mountPath"]):
                place = self._folder / mount["name"]
                place.mkdir(exist_ok=True)
                return str(place) + inside.removeprefix(mount["mountPath"])
        return inside

    @property
    def command(self) -> list[str]:
        """The image's entrypoint is `weighbridge`."""
        assert "command" not in self.spec
        return [sys.executable, "-m", "weighbridge", *self.spec["args"]]

    async def run(self) -> "subprocess.CompletedProcess[str]":
        """The container to its end."""
        return await self._ended(self.command)

    async def executed(self, *command: str) -> str:
        """What `kubectl exec` of a command of ours in it prints."""
        done = await self._ended([sys.executable, "-m", "weighbridge", *command])
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def _ended(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(
            subprocess.run,
            command,
            env=self.environ,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.subprocess.Process"]:
        """The container while it serves."""
        with (self._folder / "log").open("w") as log:
            process = await asyncio.create_subprocess_exec(
                *self.command, env=self.environ, cwd="/", stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def is_ready(self, port: int) -> None:
        """Returns once the kubelet would send traffic."""
        async with asyncio.timeout(READY_WITHIN_S):
            while await self.probe("readiness", port) != 200:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.2)

    async def probe(self, kind: str, port: int) -> int:
        """The status that the kubelet would get; 0 where nobody listens."""
        asked = self.spec[f"{kind}Probe"]["httpGet"]
        url = f"{asked['scheme'].lower()}://127.0.0.1:{port}{asked['path']}"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as reply:
                return reply.status
        except aiohttp.ClientError:
            return 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _mounted(objects: list[Manifest], role: str, container: _Container) -> None:
    """Put the rendered configuration where the container finds it."""
    (found,) = [
        each for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"].endswith(f"-{role}")
    ]
    for name, text in found["data"].items():
        Path(container.path(f"/etc/weighbridge/{name}")).write_text(text)


def _pod(objects: list[Manifest], kind: str, ending: str) -> Manifest:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(ending)]
    template: Manifest = found["spec"]["template"]
    return template


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
async def test_an_installation_from_job_to_stop(tmp_path: Path, empty_database_url: str, record_property: Any) -> None:
    """Pods refuse a database that the job was not at; the job makes the schema, twice is once; pods serve, are ready for what they are
    for, book an answer after the commands of the chart's notes, go on during the hook and end by themselves in time.
    """
    with oracle(tmp_path) as upstream:
        await _install(tmp_path, empty_database_url, upstream, record_property)


async def _install(folder_of_all: Path, database: str, upstream: Oracle, record_property: Any) -> None:
    began = time.monotonic()
    answering = {
        "provider": "openai",
        "model_id": "gpt-4o",
        "known_as": "gpt-4o",
        "deployments": [upstream.deployment("ok")],
    }
    values = laid_over(
        values_of("planes apart"),
        {
            "config": {"providers": {"models": [answering]}},
            "preStopSeconds": 1,
            "metrics": {"existingSecret": "weighbridge"},
            "listenAddress": "127.0.0.1",
        },
    )
    objects = rendered(values)
    secrets = {"pepper": _PEPPER, "database-url": database, "metrics-token": "t" * 32}
    for role, path in (("gateway", "/readyz"), ("control-plane", "/readyz/control-plane")):
        folder = folder_of_all / role
        folder.mkdir()
        port = _free_port()
        pod = _pod(objects, "StatefulSet", f"-{role}")
        # Two may not have one port here, as they may in pods of their own.
        serving = _Container(pod, folder, secrets, OPENAI_API_KEY="k", WEIGHBRIDGE_PORT=str(port), OMP_NUM_THREADS="1")
        _mounted(objects, role, serving)
        if role == "gateway":
            refused = await serving.run()
            assert refused.returncode == 1
            assert "the database is empty; this process may not change it (WEIGHBRIDGE_MIGRATE=false)" in refused.stderr
        jobs = folder_of_all / f"job of {role}"
        jobs.mkdir()
        job = await _Container(_pod(objects, "Job", "-migrate"), jobs, secrets).run()
        assert job.returncode == 0, job.stderr
        assert ("nothing to do" in job.stdout) is (role != "gateway")
        async with serving.running() as process:
            await serving.is_ready(port)
            assert serving.spec["readinessProbe"]["httpGet"]["path"] == path
            assert [await serving.probe(kind, port) for kind in ("startup", "liveness")] == [200, 200]
            if role == "gateway":
                await _answers_and_books(serving, port)
                record_property("seconds to a first booked answer", round(time.monotonic() - began, 1))
            # What Prometheus is let in with.
            async with (
                aiohttp.ClientSession(headers={"authorization": f"Bearer {'t' * 32}"}) as session,
                session.get(f"http://127.0.0.1:{port}/metrics") as reply,
            ):
                assert (reply.status, "weighbridge_in_flight_requests" in await reply.text()) == (200, True)
            hook = await asyncio.create_subprocess_exec(*serving.spec["lifecycle"]["preStop"]["exec"]["command"])
            assert await hook.wait() == 0
            assert await serving.probe("readiness", port) == 200
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(pod["spec"]["terminationGracePeriodSeconds"]):
                assert await process.wait() == 0, (folder / "log").read_text()
        assert (folder / "data" / "journal").is_dir()


async def _answers_and_books(serving: _Container, port: int) -> None:
    await serving.executed("teams", "create", "team_first")
    key = (await serving.executed("keys", "create", "team_first")).split()[-1]
    asked = {"model": "auto", "messages": [{"role": "user", "content": "Say hello."}]}
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as session,
        session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=asked) as reply,
    ):
        assert reply.status == 200, await reply.text()
    async with asyncio.timeout(_LIMIT_S):
        # On a machine that is late, it may have been asked for twice.
        while not re.search(r"agree: [1-9]", await serving.executed("ledger", "verify")):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)


async def test_one_pod_tries_it_alone(tmp_path: Path) -> None:
    """Without a database and a pepper from outside both are made in its volume; a Service's variables would end the start."""
    objects = rendered(laid_over(values_of("tried in one pod"), {"listenAddress": "127.0.0.1"}))
    port = _free_port()
    container = _Container(_pod(objects, "StatefulSet", "-gateway"), tmp_path, {}, OPENAI_API_KEY="k")
    _mounted(objects, "gateway", container)
    container.environ["WEIGHBRIDGE_PORT"] = "tcp://10.96.0.1:80"
    linked = await container.run()
    assert linked.returncode != 0
    assert "WEIGHBRIDGE_PORT" in linked.stderr
    container.environ["WEIGHBRIDGE_PORT"] = str(port)
    async with container.running() as process:
        await container.is_ready(port)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    assert {"pepper", "weighbridge.sqlite"} <= {each.name for each in (tmp_path / "data").iterdir()}


@pytest.mark.parametrize("name", ["defaults", "batch in an object store", "batch apart", "keda", "extra authority"])
def test_config_check_takes_what_is_rendered(name: str, tmp_path: Path) -> None:
    """Each role's file, by the product's own check."""
    for role in ("gateway", "batch") if "batch" in name else ("gateway",):
        file = tmp_path / f"{role}.yaml"
        written = yaml.safe_load(find(name, "ConfigMap", f"-{role}")["data"]["gateway.yaml"])
        # The certificate is a Secret's, which is not here.
        written["server"].pop("tls", None)
        file.write_text(yaml.safe_dump(written))
        done = subprocess.run(
            [sys.executable, "-m", "weighbridge", "config", "check", str(file)],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "WEIGHBRIDGE_PEPPER": _PEPPER},
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
