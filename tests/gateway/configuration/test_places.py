"""Where relative paths of the configuration and the environment lead."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.configuration.environment import Environment, read_environment
from gateway.configuration.file import ConfigError
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.places import Places, unwritable
from gateway.configuration.settings import load
from gateway.process.serve import check_places
from proxy.shared.redis.redis_config import RedisSection
from settings.types import is_given, is_kept

CONFIG = """\
accounts: {pepper_file: ./var/pepper}
server: {tls: {certificate: tls/chain.pem, key: tls/key.pem}}
cost: {reference_target: a, report: {at: "06:00", folder: reports}}
batch: {folder: var/batch}
sign_in:
  public_url: "https://w.example"
  providers: [{name: corp, label: Corp, issuer: "https://id.example", client_id: w, client_secret: "file:secrets/oidc", ca_file: ca.pem}]
providers:
  models:
    - model_id: a
      provider: openai
      max_context_tokens: 1000
      prices: {input: 1.0, output: 1.0}
      deployments: [{kind: openai, base_url: "https://a.example/v1", api_key: "file:secrets/a"}]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, beside the one that commands are started in."""
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    folder = tmp_path / "site"
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    (folder / "gateway.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


def _load(path: Path, data_dir: Path | None = None) -> GatewayConfig:
    return load(path, Environment(data_dir=data_dir), secrets_from=None)


def _kept(config: GatewayConfig) -> list[Path | None]:
    assert config.cost.report is not None
    return [config.accounts.pepper_file, config.cost.journal_dir, config.batch.folder, config.cost.report.folder]


def _read(config: GatewayConfig) -> list[str]:
    assert config.server.tls is not None
    corp = config.sign_in.providers[0]
    files = [config.server.tls.certificate, config.server.tls.key, corp.ca_file, corp.client_secret]
    return [*map(str, files), str(config.providers.models[0].deployments[0].api_key)]


def _files_of(site: Path) -> list[str]:
    given = [f"{site}/tls/chain.pem", f"{site}/tls/key.pem", f"{site}/ca.pem"]
    return [*given, f"file:{site}/secrets/oidc", f"file:{site}/secrets/a"]


def test_paths_belong_to_the_folder_of_the_configuration(site: Path) -> None:
    """Whatever folder a command runs in, and however the configuration is named there, paths lead beside it."""
    for path in (site / "gateway.yaml", Path("../site/gateway.yaml")):
        config = _load(path)
        assert _kept(config) == [
            site / "var/pepper",
            site / "var/journal",
            site / "var/batch",
            site / "reports",
        ]
    assert _read(_load(site / "gateway.yaml")) == _files_of(site)
    environment = read_environment(site / "gateway.yaml")
    assert environment.database() == f"sqlite+aiosqlite:///{site}/var/weighbridge.sqlite"


def test_the_data_folder_takes_what_is_kept(site: Path, tmp_path: Path) -> None:
    """WEIGHBRIDGE_DATA_DIR stands for `var`, and has everything that is kept; what is read stays beside the configuration."""
    data = tmp_path / "data"
    config = _load(site / "gateway.yaml", data)
    assert _kept(config) == [data / "pepper", data / "journal", data / "batch", data / "reports"]
    assert _read(config) == _files_of(site)
    assert _kept(_load(site / "gateway.yaml", Path("kept")))[0] == site / "kept/pepper"


def test_a_link_belongs_to_its_own_folder(site: Path, tmp_path: Path) -> None:
    """A mounted file is a link into a folder with another name each time; paths are beside the link."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "gateway.yaml").symlink_to(site / "gateway.yaml")
    assert _kept(_load(mounted / "gateway.yaml"))[0] == mounted / "var/pepper"


def test_every_path_of_the_configuration_is_marked() -> None:
    """A key whose type is a path is one that is kept or one that is given, or it would follow the working directory."""
    paths = {name: field for name, field in _fields(GatewayConfig) if Path in _inside(field.annotation)}
    assert len(paths) >= len(("certificate", "key", "pepper_file", "ca_file", "artifact_dir", "journal_dir", "folder"))
    assert [name for name, field in paths.items() if not is_kept(field) and not is_given(field)] == []


def _fields(section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        yield f"{section.__name__}.{name}", field
        for inner in _inside(field.annotation):
            if isinstance(inner, type) and get_origin(inner) is None and issubclass(inner, BaseModel):
                yield from _fields(inner)


def _inside(annotation: Any) -> list[Any]:
    return [annotation, *(each for part in get_args(annotation) for each in _inside(part))]


@pytest.mark.parametrize(
    ("written", "whole"),
    [
        ("sqlite:///var/own.sqlite", "sqlite:////data/own.sqlite"),
        ("sqlite+aiosqlite:///own.sqlite?timeout=9", "sqlite+aiosqlite:////data/own.sqlite?timeout=9"),
        ("sqlite:////srv/own.sqlite", "sqlite:////srv/own.sqlite"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite://", "sqlite://"),
        ("sqlite:///file:own.sqlite?mode=ro&uri=true", "sqlite:///file:own.sqlite?mode=ro&uri=true"),
        ("postgresql://a:b@db/var", "postgresql://a:b@db/var"),
    ],
)
def test_addresses_of_sqlite(written: str, whole: str) -> None:
    """A relative file in a SQLite address is kept as any other; no other address changes."""
    assert Places(None, Path("/data")).database(written) == whole


def test_files_of_a_postgresql_address(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates that the database's address names are beside the configuration; `system` is no file, and whole paths stay."""
    (site / "own ca.pem").write_text("x")
    address = "postgresql://a:b@db/x?sslmode=verify-full&sslrootcert=%s"
    for written, whole in (
        ("own%20ca.pem", f"{site}/own%20ca.pem"),
        ("system", "system"),
        (f"{site}/own%20ca.pem",) * 2,
    ):
        monkeypatch.setenv("DATABASE_URL", address % written)
        assert read_environment(site / "gateway.yaml").database() == address % whole
    monkeypatch.setenv("DATABASE_URL", address % "none.pem")
    with pytest.raises(ConfigError, match=f"names is not there: {site}/none.pem"):
        read_environment(site / "gateway.yaml")


def test_files_of_a_redis_address(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates that Redis's address names are beside the configuration, too."""
    monkeypatch.setenv("REDIS_URL", "rediss://r:6379/0?ssl_ca_certs=ca.pem&ssl_keyfile=/k.pem")
    whole = f"rediss://r:6379/0?ssl_ca_certs={site}/ca.pem&ssl_keyfile=/k.pem"
    assert read_environment(site / "gateway.yaml").redis(RedisSection()) == whole


def test_without_a_configuration_nothing_is_taken_from_the_working_directory(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that has nothing to resolve a path against says what to name, and what earlier versions took."""
    with pytest.raises(ConfigError, match="Name the configuration by --config FILE or WEIGHBRIDGE_CONFIG"):
        read_environment().database()
    _fill(Path("var/weighbridge.sqlite"))
    with pytest.raises(ConfigError, match=f"WEIGHBRIDGE_DATA_DIR={Path.cwd()}/var uses it"):
        read_environment().database()
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(site))
    assert read_environment().database() == f"sqlite+aiosqlite:///{site}/weighbridge.sqlite"


def _fill(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


@pytest.mark.parametrize(
    ("old", "key"),
    [
        ("var/weighbridge.sqlite", "the database"),
        ("var/pepper", "gateway.yaml:1: accounts.pepper_file"),
        ("var/journal/x", "cost.journal_dir"),
        ("var/batch/x", "gateway.yaml:4: batch.folder"),
        ("reports/2026-11-29/a.csv", "gateway.yaml:3: cost.report.folder"),
        ("tls/key.pem", "gateway.yaml:2: server.tls.key"),
        ("secrets/a", "gateway.yaml:14: providers.models[0].deployments[0].api_key"),
    ],
)
def test_what_lies_in_the_old_place_is_found_and_said(site: Path, old: str, key: str) -> None:
    """Data that an earlier version left in the working directory refuses the start, with both places; once moved, all is well."""
    here = Path.cwd() / old
    _fill(here)
    with pytest.raises(ConfigError) as refused:
        _load(site / "gateway.yaml")
    (problem,) = refused.value.problems
    assert key in str(problem)
    inner = Path(*here.relative_to(Path.cwd()).parts[: 1 if old.startswith("reports") else 2])
    assert f"leads to {site / inner}, where nothing is; earlier versions took {Path.cwd() / inner}" in str(problem)
    (site / inner).parent.mkdir(exist_ok=True)
    (Path.cwd() / inner).rename(site / inner)
    _load(site / "gateway.yaml")


def test_old_batch_files_are_found_in_the_data_folder(site: Path) -> None:
    """Without `batch.folder` files are in the data folder, and old ones are looked for where that was."""
    _fill(Path("var/files/x"))
    _load(site / "gateway.yaml")
    (site / "gateway.yaml").write_text(CONFIG.replace("batch: {folder: var/batch}", ""))
    with pytest.raises(ConfigError, match=f"batch files: leads to {site}/var/files"):
        _load(site / "gateway.yaml")


def test_everything_old_comes_back_by_the_data_folder(site: Path) -> None:
    """The one remedy that each message names mends them all, as nothing was written elsewhere meanwhile."""
    _fill(*(Path("var") / name for name in ("weighbridge.sqlite", "pepper", "journal/x", "batch/x")))
    with pytest.raises(ConfigError) as refused:
        _load(site / "gateway.yaml")
    remedy = f"WEIGHBRIDGE_DATA_DIR={Path.cwd()}/var"
    assert [remedy in str(each) for each in refused.value.problems] == [True] * 4
    config = _load(site / "gateway.yaml", Path.cwd() / "var")
    assert _kept(config)[:3] == [Path.cwd() / "var" / name for name in ("pepper", "journal", "batch")]
    assert not (site / "var").exists()


def test_an_old_pepper_that_has_no_effect_is_left(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With WEIGHBRIDGE_PEPPER nobody reads the file, so that nobody has to move it."""
    _fill(Path("var/pepper"))
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", "p" * 32)
    load(site / "gateway.yaml", read_environment(), secrets_from=None)


def test_a_folder_that_cannot_be_written_is_named(site: Path, tmp_path: Path) -> None:
    """Each thing that cannot be kept is one problem, before anything listens; what can be written is made, for this account alone."""
    _fill(tmp_path / "no-folder")
    config = _load(site / "gateway.yaml", tmp_path / "no-folder")
    with pytest.raises(ConfigError) as refused:
        check_places(config, Environment(config=site / "gateway.yaml", data_dir=tmp_path / "no-folder"))
    told = [str(each) for each in refused.value.problems]
    keys = ["accounts.pepper_file", "batch.folder", "cost.journal_dir", "cost.report.folder", "the database"]
    assert [each.partition(":")[0] for each in told] == keys
    assert all(f"cannot write to {tmp_path / 'no-folder'}" in each and "WEIGHBRIDGE_DATA_DIR" in each for each in told)
    check_places(_load(site / "gateway.yaml"), Environment(config=site / "gateway.yaml"))
    assert (site / "var/journal").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    """A folder without the right to write is told from one that has it."""
    tmp_path.chmod(0o500)
    assert "Permission denied" in str(unwritable({"x": tmp_path})[0])
