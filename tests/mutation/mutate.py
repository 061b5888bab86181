"""Change one thing of a module at a time, and see whether its tests notice: `python -m tests.mutation.mutate [SEED [MOST [MODULE...]]]`.

`MODULES` says by which tests a module is held, `survivors.toml` beside it why a change that no test notices is none. The tests of a module
run once to tell which statements each of them runs; a change is then tried by those that run what is changed, quickest first, in a
process forked from one that has imported and collected everything, whose function is given the changed code. What is changed where the
module is imported is tried by a process that imports it so. No file is written but `build/mutation/`, where what was found is kept: the
next run leaves out what a test has noticed already, until the module is another. Remove the folder to begin anew.
"""

import ast
import builtins
import functools
import gc
import hashlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import random
import resource
import select
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from _pytest.main import pytest_runtestloop as run_loop

from proxy.shared.redis.scripts import script
from tests.mutation.changes import IN_LUA, changed, lua_changes, path_of, places_of, told_of

_ROOT: Final = Path(__file__).parents[2]
_KEPT: Final = _ROOT / "build" / "mutation"
_MORE_S: Final = 20.0
"""A change whose tests take so much longer than twice as long as without it is noticed: it runs for ever."""
_JOBS: Final = int(os.environ.get("JOBS", "2"))
_TOLD: Final = "_statement_runs_"
_NO_CODE: Final = compile("", "", "exec")
_SURVIVES: Final = "survives"
_LIMITS: Final = "tests/proxy/admit/limits"
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "cost.amounts": ("tests/cost/test_amounts.py",),
    "cost.prices": ("tests/cost/test_prices.py",),
    "cost.usage": ("tests/cost/test_usage.py",),
    "cost.budgets.periods": ("tests/cost/budgets/test_periods.py",),
    "cost.ledger.rollups": tuple(
        f"tests/cost/ledger/test_{each}.py" for each in ("rollups", "rolled_up", "verify", "postings")
    ),
    "cost.budgets.grants": tuple(
        f"tests/cost/budgets/test_{each}.py"
        for each in ("grants", "budget_reservations", "scopes", "store", "holds_machine")
    ),
    "cost.budgets.budget": tuple(
        f"tests/cost/budgets/test_{each}.py" for each in ("budget", "outlook", "alerts", "store")
    ),
    "cost.budgets.budget_reservations": tuple(
        f"tests/cost/budgets/test_{each}.py"
        for each in ("budget_reservations", "holds_machine", "budgeted_ledger", "budget_rounds")
    ),
    "cost.meters": ("tests/cost/test_prices.py", "tests/cost/test_meters.py"),
    "proxy.admit.limits.bucket": (f"{_LIMITS}/test_bucket.py", f"{_LIMITS}/test_local.py"),
    **{
        f"proxy.shared.redis.scripts.{each}.lua": (f"{_LIMITS}/test_shared.py", f"{_LIMITS}/test_limiter.py")
        for each in ("admit", "settle", "charge", "count")
    },
    "proxy.admit.limits.local": (f"{_LIMITS}/test_local.py", f"{_LIMITS}/test_limiter.py", f"{_LIMITS}/test_shared.py"),
}


class _Finder:
    """Answers for one module alone, with another code than its file has."""

    def __init__(self, module: str, tree: Callable[[], ast.Module]) -> None:
        self._module, self._tree = module, tree

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        loader = importlib.machinery.SourceFileLoader(name, str(path_of(name)))
        loader.get_code = lambda _: compile(self._tree(), loader.path, "exec")  # type: ignore[method-assign, assignment]
        return importlib.util.spec_from_loader(name, loader)


class _Change(NamedTuple):
    """One change to try."""

    number: int
    told: str
    tests: list[str]
    """Those that run what is changed, quickest first."""
    usual_s: float
    """Seconds that they take without it."""


class _Run:
    """One module's changes, as a plug-in of pytest. What it forks goes on as that run of pytest, and ends in it."""

    def __init__(self, module: str, numbers: Sequence[int], found: Callable[[int, str], None]) -> None:
        self._module, self._numbers, self._found = module, numbers, found
        self._source = path_of(module).read_text()
        self._places = places_of(module)
        self._running: set[int] = set()
        self._importing: list[_Change] = []
        self._only: list[str] | None = None
        self._failed = ""
        self._tell: Callable[[str], None] = lambda _: None
        setattr(builtins, _TOLD, self._running.add)
        sys.meta_path.insert(0, _Finder(module, lambda: told_of(self._source, _TOLD)))

    def pytest_configure(self) -> None:
        """Look for no smaller example than the first that fails, and keep none: no other run should see it."""
        import hypothesis

        usual = hypothesis.settings()
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutation", parent=usual, phases=phases, database=None)
        hypothesis.settings.load_profile("mutation")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Iterator[None]:
        """Let a fork collect and try what functions do; then have each change of what is imported collected by a fork of its own."""
        if self._module in sys.modules:
            raise pytest.UsageError(
                f"{self._module} is imported before any test is: what it does then cannot be changed"
            )
        told, telling = os.pipe()
        forked = os.fork()
        if not forked:
            os.close(told)
            self._tell = functools.partial(_write, telling)
            return (yield)
        os.close(telling)
        with os.fdopen(told) as lines:
            for line in lines:
                word, *rest = json.loads(line)
                if word == "found":
                    self._found(*rest)
                elif word == "importing":
                    self._importing = [_Change(*each) for each in rest[0]]
                    imported = rest[1]
                else:
                    print(*rest, flush=True)
        if os.waitpid(forked, 0)[1]:
            os._exit(3)
        if self._importing:
            self._import_others(imported)
        mine = self._forks(self._importing, self._import_changed, self._found)
        if mine is None:
            os._exit(0)
        self._only = mine.tests
        return (yield)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that try a change, in their order."""
        if self._only is not None:
            by_id = {item.nodeid: item for item in items}
            items[:] = [by_id[each] for each in self._only if each in by_id]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if self._only is not None:
            self._try(session)
        items = list(session.items)
        by_id = {item.nodeid: item for item in items}
        seconds, lines = self._recorded(session)
        at_import = set(lines.pop(""))
        tried: list[_Change] = []
        importing: list[_Change] = []
        for number in self._numbers:
            place = self._places[number]
            is_imported = not place.function or place.statement in at_import
            tests = [each for each in by_id if place.statement in lines[each]]
            if is_imported or place.function == IN_LUA:
                # What it made is looked at by whoever runs anything of the module, or only by who imports it.
                tests = list(by_id)
            tests.sort(key=lambda each: (each not in lines or not lines[each], seconds[each]))
            change = _Change(number, place.told, tests, sum(seconds[each] for each in tests))
            (importing if is_imported else tried).append(change)
        gc.unfreeze()
        functions = [
            each
            for each in gc.get_objects()
            if isinstance(each, FunctionType) and each.__code__.co_filename == str(path_of(self._module))
        ]
        gc.freeze()
        # What runs is told no longer.
        plain = dict(_codes_of(compile(self._source, str(path_of(self._module)), "exec"))) if functions else {}
        for each in functions:
            if "<lambda>" not in each.__code__.co_qualname:
                each.__code__ = plain[each.__code__.co_qualname, each.__code__.co_firstlineno]

        def begin(change: _Change) -> None:
            self._give(functions, change.number)
            session.items = [by_id[each] for each in change.tests]

        def found(number: int, by: str) -> None:
            self._tell(json.dumps(["found", number, by]))

        for change in [each for each in tried if not each.tests]:
            found(change.number, _SURVIVES)
        if self._forks([each for each in tried if each.tests], begin, found) is not None:
            self._try(session)
        ours = [name for name, each in sys.modules.items() if _is_ours(each)]
        self._tell(json.dumps(["importing", importing, ours]))
        os._exit(0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep which test failed."""
        if report.failed:
            self._failed = report.nodeid

    def pytest_internalerror(self) -> None:
        traceback.print_exc()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be imported is noticed."""
        if report.failed:
            self._tell(f"{report.nodeid} is collected")
            if self._only is not None:
                os._exit(0)

    def _try(self, session: pytest.Session) -> None:
        session.config.option.maxfail = 1
        with suppress(session.Failed, session.Interrupted, KeyboardInterrupt):
            run_loop(session)
        with suppress(BaseException):
            session._setupstate.teardown_exact(None)
        self._tell(self._failed or _SURVIVES)
        os._exit(0)

    def _recorded(self, session: pytest.Session) -> tuple[dict[str, float], dict[str, list[int]]]:
        """Return the seconds that each test takes and the statements that it runs; under the empty name what is run before them."""
        files = {each: _digest(_text(each)) for each in MODULES[self._module]} | {"": _digest(self._source)}
        kept = _KEPT / f"{self._module}.lines.json"
        known: dict[str, Any] = {"files": {}, "seconds": {}, "lines": {}}
        with suppress(OSError, ValueError):
            known = json.loads(kept.read_text())
        is_known = {each for each, digest in files.items() if known["files"].get(each) == digest}
        if "" not in is_known:
            is_known = set()
        # Only what is new runs again.
        seconds = {each: took for each, took in known["seconds"].items() if each.partition("::")[0] in is_known}
        lines = {each: known["lines"][each] for each in seconds}
        items = [each for each in session.items if each.nodeid not in seconds]
        before = {"": sorted(self._running)}
        if not items:
            return seconds, lines | before
        told, telling = os.pipe()
        if not (forked := os.fork()):
            seconds, lines = {}, {}
            self._tell = functools.partial(_write, telling)
            session.items = items
            session.config.pluginmanager.register(_Recorder(self._running, seconds, lines, self._caches()))
            run_loop(session)
            with suppress(BaseException):
                session._setupstate.teardown_exact(None)
            _write(telling, json.dumps([self._failed, seconds, lines]))
            os._exit(0)
        os.close(telling)
        with os.fdopen(told) as answer:
            failed, *new = json.loads(answer.read())
            seconds, lines = seconds | new[0], lines | new[1]
        os.waitpid(forked, 0)
        if failed:
            self._tell(json.dumps(["told", f"{self._module}: {failed} fails without a change"]))
            os._exit(1)
        kept.write_text(json.dumps({"files": files, "seconds": seconds, "lines": lines}))
        self._tell(json.dumps(["told", f"{self._module}: {len(seconds)} tests take {sum(seconds.values()):.1f} s"]))
        return seconds, lines | before

    def _caches(self) -> list[Any]:
        """Return what remembers the results of the module's functions: each test is to run what another one has run."""
        gc.unfreeze()
        found = [each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper)]
        gc.freeze()
        path = str(path_of(self._module))
        return [each for each in found if getattr(inspect.unwrap(each), "__code__", _NO_CODE).co_filename == path]

    def _forks(
        self, changes: Sequence[_Change], begin: Callable[[_Change], None], found: Callable[[int, str], None]
    ) -> _Change | None:
        """Fork for each change. Returns it in the fork, and None where all are found."""
        left = list(changes)
        running: dict[int, tuple[int, _Change, float]] = {}
        while left or running:
            while left and len(running) < _JOBS:
                change = left.pop(0)
                told, telling = os.pipe()
                forked = os.fork()
                if not forked:
                    os.setsid()
                    nothing = os.open(os.devnull, os.O_RDWR)
                    for descriptor in (0, 1, 2):
                        os.dup2(nothing, descriptor)
                    self._tell, self._failed = functools.partial(_write, telling), ""
                    begin(change)
                    return change
                os.close(telling)
                running[told] = (forked, change, time.monotonic() + _MORE_S + 2 * change.usual_s)
            ready = select.select(list(running), [], [], 0.5)[0]
            for told, (forked, change, until) in list(running.items()):
                if told not in ready and time.monotonic() < until:
                    continue
                answer = os.read(told, 10_000).decode() if told in ready else "for ever"
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(forked, signal.SIGKILL)
                os.waitpid(forked, 0)
                os.close(told)
                del running[told]
                found(change.number, answer.strip() or "ends the process")
        return None

    def _import_others(self, names: Sequence[str]) -> None:
        """Import what does not need the module, once for all changes of what is imported."""

        def refuse() -> ast.Module:
            raise ImportError(self._module)

        sys.meta_path[0] = _Finder(self._module, refuse)
        for name in names:
            with suppress(ImportError):
                importlib.import_module(name)

    def _import_changed(self, change: _Change) -> None:
        sys.meta_path[0] = _Finder(self._module, lambda: changed(self._source, change.number))

    def _give(self, functions: Sequence[FunctionType], number: int) -> None:
        place = self._places[number]
        if place.function == IN_LUA:
            found = script(self._module.removesuffix(".lua").rpartition(".")[2])
            text = lua_changes(self._source)[number][1]
            msgspec.structs.force_setattr(found, "text", text)
            msgspec.structs.force_setattr(found, "sha", hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
            return
        codes = dict(_codes_of(compile(changed(self._source, number), str(path_of(self._module)), "exec")))
        given = [each for each in functions if each.__code__.co_qualname == place.function]
        assert given, place
        for each in given:
            each.__code__ = codes[place.function, each.__code__.co_firstlineno]


class _Recorder:
    """Tells what each test runs, as a plug-in of pytest."""

    def __init__(
        self, running: set[int], seconds: dict[str, float], lines: dict[str, list[int]], caches: Sequence[Any]
    ) -> None:
        self._running, self._seconds, self._lines, self._caches = running, seconds, lines, caches

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._running.clear()
        for each in self._caches:
            each.cache_clear()
        begun = time.monotonic()
        result = yield
        self._seconds[item.nodeid], self._lines[item.nodeid] = time.monotonic() - begun, sorted(self._running)
        return result


def _is_ours(module: ModuleType) -> bool:
    """Return True for the project's modules, but for tests, which pytest imports in its own way."""
    path = getattr(module, "__file__", None) or ""
    return path.startswith(f"{_ROOT}/") and "/tests/" not in path and "/.venv" not in path


def _write(descriptor: int, text: str) -> None:
    data = f"{text}\n".encode()
    while data:
        data = data[os.write(descriptor, data) :]


def _codes_of(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Yield the code of each function and class in a code, under its qualified name and line."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield (each.co_qualname, each.co_firstlineno), each
            yield from _codes_of(each)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _text(path: str) -> str:
    at = _ROOT / path.partition("::")[0]
    return "\0".join(each.read_text() for each in sorted(at.rglob("*.py"))) if at.is_dir() else at.read_text()


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def told_of_module(module: str) -> list[str]:
    """Return what is changed by each change of a module."""
    return [each.what for each in places_of(module)]


def _try_module(module: str, wanted: int, chance: random.Random, explained: Mapping[str, str]) -> tuple[int, int, int]:
    """Try at most so many of a module's changes. Returns how many it has of those, how many are explained, how many survive."""
    source = path_of(module).read_text()
    places = places_of(module)
    numbers = list(range(len(places)))
    chance.shuffle(numbers)
    numbers = numbers[:wanted]
    kept = _KEPT / f"{module}.json"
    digest = _digest(source)
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        known = json.loads(kept.read_text())
    noticed: dict[str, str] = known.get("noticed", {}) if known.get("digest") == digest else {}
    left = sorted(each for each in numbers if str(each) not in noticed and places[each].what not in explained)
    survive: list[str] = []
    begun, used, tried = time.monotonic(), _processor_s(), 0

    def found(number: int, by: str) -> None:
        nonlocal tried
        tried += 1
        if by == _SURVIVES:
            survive.append(places[number].told)
            print(f"survives: {module}:{places[number].told}", flush=True)
        else:
            noticed[str(number)] = by
            kept.write_text(json.dumps({"digest": digest, "noticed": noticed}))
        if tried % 20 == 0:
            print(f"{module}: {tried} of {len(left)} after {time.monotonic() - begun:.0f} s", flush=True)

    if left:
        _forked(module, left, found)
        if tried != len(left):
            raise SystemExit(f"{module}: of {len(left)} changes only {tried} were tried; run it again")
    is_explained = sum(places[each].what in explained for each in numbers)
    print(
        f"{module}: {len(numbers)} changes, {is_explained} explained, {len(survive)} that no test notices;"
        f" {tried} tried now in {time.monotonic() - begun:.0f} s, {_processor_s() - used:.0f} s of a processor",
        flush=True,
    )
    return len(numbers), is_explained, len(survive)


def _forked(module: str, numbers: Sequence[int], found: Callable[[int, str], None]) -> None:
    """Run pytest in a fork, so that nothing of one module's run is there in another's."""
    told, telling = os.pipe()
    forked = os.fork()
    if not forked:
        os.close(told)
        run = _Run(module, numbers, lambda number, by: _write(telling, json.dumps([number, by])))
        options = ["-n", "0", "-q", "-s", "--no-header", "-p", "no:cacheprovider", "-k", os.environ.get("ONLY", "")]
        os._exit(int(pytest.main([*options, *MODULES[module]], plugins=[run])))
    os.close(telling)
    with os.fdopen(told) as lines:
        for line in lines:
            found(*json.loads(line))
    os.waitpid(forked, 0)


def main(arguments: list[str]) -> int:
    """Try changes, some of each module by chance, and tell those that survive without a reason. Returns 1 where there is one."""
    chance = random.Random(int(arguments[0]) if arguments else 0)
    most = int(arguments[1]) if len(arguments) > 1 else 1_000_000
    explained = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text())
    modules = arguments[2:] or list(MODULES)
    _KEPT.mkdir(parents=True, exist_ok=True)
    sizes = {module: len(told_of_module(module)) for module in modules}
    every = sum(sizes.values())
    totals = [0, 0, 0]
    for module in modules:
        wanted = sizes[module] if most >= every else -(-most * sizes[module] // every)
        counts = _try_module(module, wanted, chance, explained.get(module, {}))
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
    print(f"{totals[0]} changes, {totals[1]} explained, {totals[2]} that no test notices")
    return int(totals[2] > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
