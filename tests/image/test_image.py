"""What people file against the images of others, tried on ours. Each test names one or two such threads."""

import json
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.image.containers import CONFINED, IMAGE, ROOT, Container, podman, started, volume
from tests.running_gateway import CHEAP_PRICES, model

_MOST_BYTES: Final = 130_000_000
_DRAIN_S: Final = 5
_ASK: Final = """
import json, sys, urllib.request
asked = urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions", method="POST",
    headers={"authorization": "Bearer " + sys.argv[1], "content-type": "application/json"},
    data=json.dumps({"model": "auto", "messages": [{"role": "user", "content": "Say hello."}]}).encode())
with urllib.request.urlopen(asked) as reply:
    print(reply.status, reply.headers["x-weighbridge-target"])
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for /etc/weighbridge: one target without a network, a pepper that is made."""
    folder = tmp_path_factory.mktemp("etc")
    written = {
        "server": {"drain_s": _DRAIN_S},
        "accounts": {"pepper_file": "var/pepper"},
        "providers": {
            "models": [model("cheap", [{"kind": "scripted", "upstream_model": "ok"}], prices=CHEAP_PRICES)],
        },
    }
    (folder / "gateway.yaml").write_text(yaml.safe_dump(written))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def serving(config: Path) -> Iterator[Container]:
    """A container without a network that is ready."""
    with volume() as state, started(state, config=config) as container:
        container.wait_until_ready()
        yield container


def make_key(container: Container) -> str:
    container.run("weighbridge", "teams", "create", "team_a")
    return container.run("weighbridge", "keys", "create", "team_a").split()[-1]


def test_a_restart_keeps_keys_and_books(config: Path) -> None:
    """Without a network it starts, as nothing is fetched (BerriAI/litellm#4915, #33365), and answers. A stop is over before anybody
    would kill (ggml-org/llama.cpp#10815), with status 0; whoever takes its place with the same volume knows the key and has the books.
    """
    with volume() as state:
        with started(state, config=config) as first:
            first.wait_until_ready()
            key = make_key(first)
            assert first.python(_ASK, key).split() == ["200", "cheap"]
            began = time.monotonic()
            podman("stop", "--time", str(_DRAIN_S + 25), first.name)
            assert time.monotonic() - began < _DRAIN_S + 25
            assert podman("inspect", first.name, "--format", "{{.State.ExitCode}}").stdout.strip() == "0"
        with started(state, config=config) as second:
            second.wait_until_ready()
            assert second.python(_ASK, key).split() == ["200", "cheap"]
            second.run("weighbridge", "ledger", "verify")
            today = second.run("date", "+%F").strip()
            told = json.loads(
                second.run("weighbridge", "report", "daily", "--date", today, "--team", "team_a", "--json")
            )
            assert '"requests":2' in json.dumps(told, separators=(",", ":"))


def test_who_it_is(serving: Container) -> None:
    """Nobody in particular, without a capability, and the supervisor is the first process."""
    assert serving.python("import os; print(os.getuid(), os.getgid())").split() == ["65532", "65532"]
    status = dict(
        line.split(":\t", 1)
        for line in serving.python("print(open('/proc/1/status').read())").splitlines()
        if ":\t" in line
    )
    assert status["CapEff"].strip("0 ") == status["CapBnd"].strip("0 ") == ""
    assert status["NoNewPrivs"] == "1"
    assert "weighbridge serve" in serving.python("print(open('/proc/1/cmdline').read().replace(chr(0), ' '))")


def test_what_can_be_written(serving: Container) -> None:
    """The volume and /tmp, nothing else, and nothing else was tried (BerriAI/litellm#10624, #17264, #19134)."""
    walk = """
import os
for folder, folders, files in os.walk("/"):
    folders[:] = [each for each in folders if os.path.join(folder, each) not in ("/proc", "/sys", "/dev", "/tmp", "/var/lib/weighbridge")]
    for each in (folder, *(os.path.join(folder, name) for name in files)):
        if os.access(each, os.W_OK) and not os.path.islink(each):
            print(each)
"""
    assert serving.python(walk) == ""
    assert podman("diff", serving.name).stdout.replace("C /etc\n", "") == ""
    assert "Read-only file system" not in serving.log


def test_pages_have_their_files(serving: Container) -> None:
    """A page and all that it loads are served from a root that is read (BerriAI/litellm#19425), and readable (ParisNeo/lollms_hub#55)."""
    look = """
import re, urllib.parse, urllib.request
at = "http://127.0.0.1:8080/dashboard/sign-in"
page = urllib.request.urlopen(at).read().decode()
parts = re.findall(r'(?:src|href)="([^"#]+[.](?:css|js|svg|woff2)[^"]*)"', page)
print(sum(urllib.request.urlopen(urllib.parse.urljoin(at, each)).status == 200 for each in parts), len(parts))
"""
    served, named = serving.python(look).split()
    assert served == named
    assert int(named) > 0


def test_it_is_whole(serving: Container) -> None:
    """The compiled part of a score is used, all modules have their bytecode, and no tool that builds or fetches is left."""
    assert "_featurize" not in serving.log
    assert "compiled" in serving.python(
        "import weighbridge._own as own; own.find_folders(); from classifier.compiled import LIBRARY; print('compiled', LIBRARY)"
    )
    lacking = """
import importlib.util, pathlib, weighbridge
for each in pathlib.Path(weighbridge.__file__).parents[1].rglob("*.py"):
    if not pathlib.Path(importlib.util.cache_from_source(str(each))).exists():
        print(each)
"""
    assert serving.python(lacking) == ""
    for name in ("pip", "gcc", "cc", "curl", "wget", "apt-get", "git"):
        assert podman("exec", serving.name, "which", name, check=False).returncode != 0, name


def test_the_health_check_tells_the_truth(config: Path) -> None:
    """It passes when the gateway is ready, without curl (BerriAI/litellm#9295, langfuse/langfuse#9905), and fails while it is not."""
    with (
        volume() as state,
        started(state, "--env", "WEIGHBRIDGE_DATABASE_URL=postgresql://u@127.0.0.1:1/none", config=config) as away,
    ):
        while "starting at" not in away.log:
            time.sleep(0.1)
        assert podman("healthcheck", "run", away.name, check=False).returncode != 0
        asked = podman("exec", away.name, "weighbridge", "health", "--timeout", "60", check=False)
        assert asked.returncode == 1
        assert "Traceback" not in asked.stderr


def test_the_images_own_configuration() -> None:
    """With a key of a provider and nothing else it serves, under a number that the platform chose (OpenShift), and keeps the pepper, the
    database and the journal in the volume. That has to be so before a first key is lost with its container.
    """
    with volume() as state, started(state, "--user", "1000650000:0", "--env", "OPENAI_API_KEY=made-up") as container:
        container.wait_until_ready()
        make_key(container)
        kept = container.python("import os; print(*sorted(os.listdir('/var/lib/weighbridge')))").split()
        assert {"pepper", "weighbridge.sqlite", "journal"} <= set(kept)


def test_a_folder_of_somebody_else(config: Path, tmp_path: Path) -> None:
    """A sentence with the folder, and an end (recyclarr/recyclarr#111, liftbridge-io/liftbridge#451)."""
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    done = podman(
        *("run", "--rm", *CONFINED, "--ulimit", "nofile=20000:20000", "--ulimit", "nproc=4096:4096"),
        *("--volume", f"{config}:/etc/weighbridge:ro", "--volume", f"{state}:/var/lib/weighbridge", IMAGE),
        check=False,
    )
    assert done.returncode == 1
    assert "cannot write to /var/lib/weighbridge" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_it_says_which_version_it_is() -> None:
    """Whoever finds it running without its tag can tell."""
    labels = json.loads(podman("inspect", IMAGE, "--format", "{{json .Labels}}").stdout)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert labels["org.opencontainers.image.version"] == version


def test_it_is_small(tmp_path: Path) -> None:
    """What is fetched: all layers, compressed."""
    subprocess.run(
        ["skopeo", "copy", "--quiet", "--insecure-policy", f"containers-storage:{IMAGE}", f"oci:{tmp_path}:image"],
        check=True,
    )
    size = sum(each.stat().st_size for each in (tmp_path / "blobs" / "sha256").iterdir())
    assert size <= _MOST_BYTES


def test_built_again_it_is_the_same() -> None:
    """To the byte, every step done anew: who has the sources and the bases can tell whether an image is what it says."""
    again = f"{IMAGE}-again"
    subprocess.run([str(ROOT / ".ci" / "image"), again], cwd=ROOT, check=True, capture_output=True)
    try:
        identity = [podman("inspect", each, "--format", "{{.Id}} {{.Digest}}").stdout for each in (IMAGE, again)]
        assert identity[0] == identity[1]
    finally:
        podman("rmi", "--force", again, check=False)
