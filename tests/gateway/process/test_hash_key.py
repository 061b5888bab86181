"""The key that all processes hash prompts with."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import SecretStr

from gateway.configuration.environment import Environment
from gateway.configuration.settings import load
from gateway.process.hash_key import hash_key
from tests.fleet import Place, pool, pooled_model


def _key(folder: Path, pepper: str, *, redis: bool = True, **selfhosted: Any) -> int:
    file = folder / "gateway.yaml"
    pools = {"pools": [pool([Place("a", "http://127.0.0.1:1")])], **selfhosted}
    file.write_text(yaml.safe_dump({"providers": {"models": [pooled_model()]}, "selfhosted": pools}))
    url = SecretStr("redis://127.0.0.1:1/0") if redis else None
    environment = Environment(data_dir=folder, pepper=SecretStr(pepper), redis_url=url)
    return hash_key(load(file, environment), environment)


def test_hosts_that_tell_each_other_have_one_key(tmp_path: Path) -> None:
    """That of their pepper; others have one of their own, new at each start."""
    one, other = "a pepper of 32 bytes and some more", "another pepper of 32 bytes and more"
    assert _key(tmp_path, one) == _key(tmp_path, one) != _key(tmp_path, other)
    assert 0 < _key(tmp_path, one) < 2**32
    assert len({_key(tmp_path, one, redis=False) for _ in range(3)}) > 1
    assert len({_key(tmp_path, one, tells_other_hosts=False) for _ in range(3)}) > 1
