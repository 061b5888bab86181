"""The wheel as its users have it: beside others' packages, with a plug-in from a wheel of its own that is in effect."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Final

import httpx
import pytest
import yaml

from tests.running_gateway import CHEAP_PRICES, PEPPER, model

ROOT: Final = Path(__file__).parents[2]
_OTHERS: Final = ("settings", "testing", "cost")
_NEIGHBOURS: Final = ("django", "litellm", "proxy.py")
"""Whose files have to stay as they were. proxy.py has a folder `proxy`, as we have."""
_START_S: Final = 150.0
_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:[0-9]+")
_SCRIPTED: Final = [{"kind": "scripted", "upstream_model": "ok"}]


def _wheel(project: Path, into: Path) -> Path:
    """Builds the wheel of a copy, as nothing may change in the tree of others' tests."""
    copy = into / f"{project.name}-copy"
    if project == ROOT:
        copy.mkdir()
        packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
        for name in packages["only-include"]:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy / name)
    else:
        shutil.copytree(project, copy, ignore=shutil.ignore_patterns("__pycache__"))
    out = into / f"{project.name}-wheel"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=copy,
        check=True,
        capture_output=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    (wheel,) = out.glob("*.whl")
    return wheel


def _others_wheel(into: Path) -> Path:
    """Packages of others that are called as folders of ours, as `proxy.py`'s is."""
    path = into / "others-1.0-py3-none-any.whl"
    head = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {f"{name}/__init__.py": f"OTHERS = {name!r}\n" for name in _OTHERS} | {
        "others-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: others\nVersion: 1.0\n",
        "others-1.0.dist-info/WHEEL": head,
    }
    record = "".join(f"{name},,\n" for name in [*files, "others-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(path, "w") as written:
        for name, text in (files | {"others-1.0.dist-info/RECORD": record}).items():
            written.writestr(name, text)
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our own wheel."""
    return _wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def test_one_name_is_at_the_top(wheel: Path) -> None:
    """`proxy`, `settings` and the like are others' names, too, and an installation would take them from these."""
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"weighbridge"}
    folders = {name.split("/")[2] for name in names if name.startswith("weighbridge/_lib/")}
    root = {each.parent.name for each in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "weighbridge"}
    assert folders == root
    assert "weighbridge/_lib/classifier/artifacts/model.onnx" in names
    assert "weighbridge/plugins/__init__.py" in names


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The commands of an environment with others' packages, our wheel and that of the example. What ours needs comes from this
    environment.
    """
    folder = tmp_path_factory.mktemp("installed")
    wheels = [_others_wheel(folder), wheel, _wheel(ROOT / "examples" / "plugins" / "residency", folder)]
    environment = folder / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    locked = ["--require-hashes", "-r", str(ROOT / "requirements" / "neighbours.txt")]
    installs = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *locked]
    done = subprocess.run(installs, check=False, capture_output=True, text=True, cwd=folder)
    assert "HASHES" not in done.stderr, done.stderr
    if done.returncode:
        pytest.skip("packages of others cannot be had here")
    installs = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *map(str, wheels)]
    subprocess.run(installs, check=True, capture_output=True, cwd=folder)
    (site,) = (environment / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


@pytest.mark.long
def test_an_installed_plugin_is_in_effect(installed: Path, tmp_path: Path) -> None:
    """`config check` tries it by its entry point, and a served request goes where it says. Without its name nothing happens."""
    settings = {"allowed": {"team_a": ["here"]}}
    models = [
        model("cheap", _SCRIPTED, provider="there", prices=CHEAP_PRICES),
        model("dear", _SCRIPTED, provider="here"),
    ]
    ours = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "OMP_NUM_THREADS"}}
    environ = ours | {
        "WEIGHBRIDGE_CONFIG": str(tmp_path / "gateway.yaml"),
        "WEIGHBRIDGE_DATA_DIR": str(tmp_path),
        "WEIGHBRIDGE_PEPPER": PEPPER,
        "WEIGHBRIDGE_PORT": "0",
        "TMPDIR": str(tmp_path),
    }

    def run(*arguments: str) -> str:
        command = [str(installed / "weighbridge"), *arguments]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = (
        "import weighbridge._own, residency; weighbridge._own.find_folders(); import gateway;"
        "print(gateway.__file__, weighbridge.__file__, residency.__file__)"
    )
    python = str(installed / "python")
    found = subprocess.run([python, "-c", where], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert all(str(installed.parent) in each for each in found.stdout.split()), found.stderr
    for plugins, target in (
        ([{"name": "regions", "kind": "scorer", "use": "residency", "settings": settings}], "dear"),
        ([], "cheap"),
    ):
        written = {
            "providers": {"models": models},
            "classifier": {"enabled": False},
            "cost": {"journal_dir": str(tmp_path / "journal")},
            "plugins": plugins,
        }
        (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(written))
        assert "ok" in run("config", "check")
        if target == "dear":
            run("teams", "create", "team_a")
            key = run("keys", "create", "team_a", "--name", "tests").split()[-1]
        assert _answered_by(installed, environ, tmp_path, key) == target


def _answered_by(installed: Path, environ: dict[str, str], folder: Path, key: str) -> str:
    log = folder / "serve.log"
    with log.open("wb") as opened:
        process = subprocess.Popen(
            [str(installed / "weighbridge"), "serve"], env=environ, cwd=folder, stdout=opened, stderr=opened
        )
    try:
        until = time.monotonic() + _START_S
        url = ""
        while time.monotonic() < until and process.poll() is None:
            found = _ADDRESS.search(log.read_text())
            url = "" if found is None else found[0]
            try:
                if url and httpx.get(f"{url}/readyz", timeout=5).status_code == httpx.codes.OK:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        assert url, log.read_text()
        asked = {"model": "auto", "messages": [{"role": "user", "content": "Say hello."}]}
        reply = httpx.post(
            f"{url}/v1/chat/completions", json=asked, headers={"authorization": f"Bearer {key}"}, timeout=30
        )
        return reply.headers["x-weighbridge-target"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.mark.long
def test_installed_as_a_tool(installed: Path, wheel: Path, tmp_path: Path) -> None:
    """`uv tool install` makes it an environment of its own, with its own dependencies alone, and what is there answers a request."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WEIGHBRIDGE"))}
    tools = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    locked = ["--python", sys.executable, "--constraints", str(ROOT / "requirements" / "base.txt")]
    command = [str(installed / "uv"), "tool", "install", "--quiet", *locked, str(wheel)]
    done = subprocess.run(command, env=environ | tools, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config = {
        "providers": {"models": [model("cheap", _SCRIPTED, provider="there", prices=CHEAP_PRICES)]},
        "accounts": {"pepper_file": "var/pepper"},
    }
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
    environ |= {"WEIGHBRIDGE_CONFIG": str(tmp_path / "gateway.yaml"), "WEIGHBRIDGE_PORT": "0"}
    weighbridge = str(tmp_path / "bin" / "weighbridge")
    made = ""
    for arguments in (["teams", "create", "team_a"], ["keys", "create", "team_a"]):
        made = subprocess.run([weighbridge, *arguments], env=environ, capture_output=True, text=True, check=True).stdout
    assert _answered_by(tmp_path / "bin", environ, tmp_path, made.split()[-1]) == "cheap"
    (python,) = (tmp_path / "tools").glob("weighbridge/bin/python")
    listed = [str(installed / "uv"), "pip", "list", "--quiet", "--python", str(python), "--format", "freeze"]
    names = set(
        re.findall(
            r"^([a-z0-9-]+)==", subprocess.run(listed, capture_output=True, text=True, check=True).stdout, re.MULTILINE
        )
    )
    assert "weighbridge" in names
    assert not names & {"hatchling", "litellm", "pip", "pytest"}


# Run by the interpreter that has the packages: which of their files are missing or not what was installed.
_WHOLE: Final = """
import base64, hashlib, importlib.metadata, sys
for name in sys.argv[1:]:
    files = importlib.metadata.files(name)
    assert len(files) > 10, name
    for each in files:
        if each.hash is not None:
            digest = hashlib.new(each.hash.mode, each.locate().read_bytes()).digest()
            assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == each.hash.value, each
import django, litellm, proxy, proxy.http
print(proxy.http.__file__)
"""


@pytest.mark.long
def test_others_stay_whole(installed: Path, tmp_path: Path) -> None:
    """While it is installed, and after it was removed. This test comes last, as it removes it."""
    python = str(installed / "python")
    ask = f"import {', '.join(_OTHERS)}; print([each.OTHERS for each in ({', '.join(_OTHERS)},)])"
    environ = {"PATH": os.environ["PATH"]}

    def run(*command: str) -> str:
        done = subprocess.run([python, *command], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    (site,) = (installed.parent / "lib").glob("python*/site-packages")
    for is_installed in (True, False):
        assert run("-c", ask) == str(list(_OTHERS))
        assert run("-c", _WHOLE, *_NEIGHBOURS) == str(site / "proxy" / "http" / "__init__.py")
        if is_installed:
            assert run("-m", "weighbridge", "version")
            run("-m", "pip", "uninstall", "--quiet", "--yes", "weighbridge")
    assert not (site / "weighbridge").exists()
