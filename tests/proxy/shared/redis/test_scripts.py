"""Scripts that run inside Redis."""

import hashlib
from pathlib import Path

import pytest

import proxy.shared.redis.scripts
from proxy.shared.redis.scripts import script
from tests.redis_server import RedisServer


@pytest.mark.parametrize(
    "path", sorted(Path(proxy.shared.redis.scripts.__file__).parent.glob("*.lua")), ids=lambda path: path.stem
)
def test_a_script_is_known_by_the_hash_of_its_text(path: Path) -> None:
    """Redis computes the same one, so it can be called by it without being sent."""
    found = script(path.stem)
    assert found.text == path.read_text()
    assert found.sha == hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
    assert script(path.stem) is found


def test_an_unknown_script_is_told_at_once() -> None:
    """Not only when it is first called."""
    with pytest.raises(FileNotFoundError):
        script("nothing")


# Redis before 7.2 writes a script's numbers with %.17g, and its commands take no "-0", "1e+17" or "0.5".
_STRICT = """
local real = redis
local redis = setmetatable({call = function(...)
  for _, word in ipairs({...}) do
    if type(word) == 'number' and string.format('%.17g', word) ~= string.format('%d', word) then
      error('handed over as a number: ' .. string.format('%.17g', word))
    end
  end
  return real.call(...)
end}, {__index = real})
"""


def test_numbers_are_handed_over_as_every_redis_reads_them(empty_redis: RedisServer) -> None:
    """Also where nothing is held and nothing more is counted, and whatever is given back twice."""

    def run(name: str, keys: list[str], *args: object) -> str:
        return empty_redis.ask("EVAL", _STRICT + script(name).text, str(len(keys)), *keys, *map(str, args))

    holder, held, total = "boot:1", "p:held:boot:1", "p:total:limit"
    assert run("holders", ["p:holders"], "register", "p:", "boot", 1, 5000, "") == ":1"
    for more in (0, -1, 2, 0, -5, "-0", 0):
        assert run("count", ["p:holders", held, total], holder, "limit", more) == ":1"
    for correction in (0, -7, 0.25, 10**9):
        assert run("settle", ["p:bucket", total, held], "", correction, 1, 1, 60, 10, "limit") == ":1"
    for takes, tokens in ((1, 0), (1, 0.5), (0, 0), (1, 10**9)):
        limits = (0, 1, 1, 1, 10**12, 5, "limit")
        assert run("admit", ["p:bucket", total, "p:holders", held], holder, "", takes, tokens, *limits).startswith("$")
    for number, owed in enumerate((0, -0.0, 1e-9, 10**17, -(10**17)), start=1):
        assert run("charge", ["p:born", "p:charged", "p:bucket"], "", number, 60, 10, owed, 0.5, 1).startswith("$")
    for demand, most in ((0, 1), (10**12, 10**12), (0, 0), (1, 1)):
        keys = ["p:queue", "p:holders", "p:teams"]
        assert run("divide", keys, holder, 10**12, demand, 0, 0, 0, most, "").startswith("*")
    assert run("tell_hosts", ["p:set-aside"], 10, "gpt", 10**12, "wrote on").startswith("*")
    assert run("exchange", ["p:news"], "host", "", "news", 10, 10).startswith("*")
    assert run("holders", ["p:holders"], "leave", "p:", "boot", 1, 5000, "") == ":0"
