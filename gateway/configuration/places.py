"""Where relative paths lead. A path in the configuration belongs to the configuration's folder, wherever a command is started.

What the gateway keeps (`Kept` in the sections, its database, and its batch files) belongs to WEIGHBRIDGE_DATA_DIR where that
is set, which then stands for the folder `var`: `var/journal` is `/data/journal`.
"""

import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import msgspec
from pydantic import BaseModel

from gateway.configuration.file import ConfigError, Document, KeyPath, Problem
from providers.secret_references import inside
from settings.private import private_folder
from settings.secret_ref import is_reference
from settings.types import is_given, is_kept

DATA: Final = Path("var")
"""The folder of what is kept, beside the configuration; WEIGHBRIDGE_DATA_DIR stands for it."""
DATABASE: Final = DATA / "weighbridge.sqlite"
FILES: Final = DATA / "files"

_UNANCHORED: Final = (
    "no configuration, and WEIGHBRIDGE_DATA_DIR is no whole path: relative paths belong to the configuration's folder. Name the "
    "configuration by --config FILE or WEIGHBRIDGE_CONFIG"
)
_SQLITE: Final = re.compile(
    r"(?P<scheme>sqlite(?:\+\w+)?:///)(?P<path>(?!/|file:|:memory:)[^?]+)(?P<rest>\?.*)?\Z", re.DOTALL
)
_FILE: Final = "file:"
_NO_FILE: Final = frozenset({"", "system"})
"""libpq's word for the machine's own certificates stands where a file may."""
_Config = TypeVar("_Config", bound=BaseModel)


class Places(msgspec.Struct, frozen=True):
    """What relative paths are resolved against: the configuration's file, and the data folder where one is named."""

    config: Path | None
    data_dir: Path | None

    def given(self, path: Path) -> Path:
        """Return the place of something that is read. Raises ConfigError."""
        return path if path.is_absolute() else self._beside(path)

    def kept(self, path: Path) -> Path:
        """Return the place of something that the gateway keeps. Raises ConfigError."""
        if path.is_absolute():
            return path
        if self.data_dir is None:
            return self._beside(path)
        inner = path.relative_to(DATA) if path.is_relative_to(DATA) else path
        return self._beside(self.data_dir) / inner

    def database(self, address: str) -> str:
        """Return the database's address, in which a SQLite file has its whole path. Raises ConfigError."""
        path = sqlite_path(address)
        if path is None or path.is_absolute():
            return address
        found = _SQLITE.match(address)
        assert found is not None  # noqa: S101 - it has a path
        return f"{found['scheme']}{self.kept(path)}{found['rest'] or ''}"

    def files_in(self, address: str, parameters: Iterable[str]) -> str:
        """Return an address in which these parameters, which name files, have whole paths. Raises ConfigError."""

        def whole(found: re.Match[str]) -> str:
            written = unquote(found[2])
            return found[0] if written in _NO_FILE else found[1] + quote(str(self.given(Path(written))), safe="/")

        return re.sub(rf"([?&](?:{'|'.join(parameters)})=)([^&#]*)", whole, address)

    def _beside(self, path: Path) -> Path:
        if path.is_absolute():
            return path
        if self.config is None:
            here = Path.cwd() / DATABASE
            old = (
                f". Earlier versions took the working directory's {here}, which is there: WEIGHBRIDGE_DATA_DIR={here.parent} uses it"
                if here.is_file()
                else ""
            )
            raise ConfigError([Problem("", 0, "", _UNANCHORED + old)])
        # A link's own folder counts: what mounts files for containers links each of them into a folder of its own making.
        folder = self.config.absolute().parent
        return (folder.resolve() if ".." in folder.parts else folder) / path


def sqlite_path(address: str) -> Path | None:
    """Return the file of a SQLite address; None for other databases, and for one in memory."""
    scheme, _, rest = address.partition(":///")
    path = rest.partition("?")[0]
    if scheme.partition("+")[0] != "sqlite" or not path or path.startswith((_FILE, ":memory:")):
        return None
    return Path(path)


def placed(config: _Config, places: Places) -> _Config:
    """Return the configuration with whole paths."""
    return config.model_copy(update=dict(_moved_fields(config, places)))


def _moved_fields(section: BaseModel, places: Places) -> Iterator[tuple[str, Any]]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value is None:
            continue
        if is_kept(field):
            yield name, places.kept(value)
        elif is_given(field):
            yield name, type(value)(places.given(Path(value)))
        else:
            moved = _placed(value, places)
            if moved is not value:
                yield name, moved


def _placed(value: Any, places: Places) -> Any:
    """Return a value with whole paths; the same object where it has none."""
    if isinstance(value, str):
        return _FILE + str(places.given(_secret_file(value))) if _is_file(value) else value
    if isinstance(value, BaseModel):
        update = dict(_moved_fields(value, places))
        return value.model_copy(update=update) if update else value
    if isinstance(value, dict):
        moved = {name: _placed(inner, places) for name, inner in value.items()}
        return moved if any(moved[name] is not inner for name, inner in value.items()) else value
    if isinstance(value, list | tuple):
        items = [_placed(inner, places) for inner in value]
        return type(value)(items) if any(a is not b for a, b in zip(items, value, strict=True)) else value
    return value


def _is_file(value: str) -> bool:
    return value.startswith(_FILE) and is_reference(value)


def _secret_file(reference: str) -> Path:
    return Path(reference.removeprefix(_FILE))


def moved(config: BaseModel, places: Places, document: Document, *, without: KeyPath | None) -> list[Problem]:
    """Return a problem for each path of a configuration as it was written that leads to nothing now, and to something as
    earlier versions took it, relative to the working directory. The key `without` has no effect here.
    """
    found = []
    for key, path, is_to_keep in _paths(config, ()):
        if path.is_absolute() or key == without:
            continue
        new = places.kept(path) if is_to_keep else places.given(path)
        said = _was_elsewhere(path, new, Path.cwd() / path, places)
        found += [] if said is None else [document.problem(key, said)]
    return found


def moved_data(places: Places, database_url: str | None, *, has_files: bool) -> list[Problem]:
    """Return a problem if the database would begin anew and lies where earlier versions had it, or likewise the batch files where the
    data folder has them.
    """
    written = None if database_url is None else sqlite_path(database_url)
    kept = [
        ("the database", DATABASE if database_url is None else written),
        ("batch files", FILES if has_files else None),
    ]
    problems = []
    for name, path in kept:
        if path is None or path.is_absolute():
            continue
        is_by_default = database_url is None or path == FILES
        old = Path.cwd() / (places.data_dir or DATA) / path.name if is_by_default else Path.cwd() / path
        said = _was_elsewhere(path, places.kept(path), old, places)
        problems += [] if said is None else [Problem("", 0, name, said)]
    return problems


def _was_elsewhere(written: Path, new: Path, old: Path, places: Places) -> str | None:
    if new.exists() or new == old or not _has_data(old):
        return None
    remedy = "move it there, or write its whole path"
    if places.data_dir is not None and not places.data_dir.is_absolute():
        remedy = f"move it there, or set WEIGHBRIDGE_DATA_DIR={Path.cwd() / places.data_dir}"
    elif places.data_dir is None and written.is_relative_to(DATA):
        remedy = f"move it there, or set WEIGHBRIDGE_DATA_DIR={Path.cwd() / DATA}"
    return (
        f"leads to {new}, where nothing is; earlier versions took {old}, relative to the working directory, where something is. "
        f"Nothing runs: {remedy}. To begin anew, start from another folder"
    )


def _has_data(path: Path) -> bool:
    try:
        return any(path.iterdir()) if path.is_dir() else path.is_file()
    except OSError:
        return False


def _paths(value: Any, key: KeyPath) -> Iterator[tuple[KeyPath, Path, bool]]:
    """Yield the paths of a configuration as they were written, each with its key and True where something is kept there."""
    if isinstance(value, str):
        if _is_file(value):
            yield key, _secret_file(value), False
        return
    fields = type(value).model_fields if isinstance(value, BaseModel) else {}
    for name, inner in inside(value):
        field = fields.get(str(name))
        if inner is not None and field is not None and (is_kept(field) or is_given(field)):
            yield (*key, name), Path(inner), is_kept(field)
        else:
            yield from _paths(inner, (*key, name))


def unwritable(folders: dict[str, Path], files: tuple[Path, ...] = ()) -> list[Problem]:
    """Make the folders, by what is kept there, and return a problem for each in which, and for each file to which, this process
    cannot write.
    """
    problems = []
    for name, folder in folders.items():
        try:
            private_folder(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            problems += _cannot(name, folder, error)
    for file in files:
        # Opening it would do, but closing lets go of the locks that SQLite has on it.
        if file.exists() and not os.access(file, os.W_OK):
            problems += _cannot("the database", file, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    return problems


def _cannot(name: str, place: Path, error: OSError) -> list[Problem]:
    # A full disk is one that somebody empties while this process waits.
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return []
    said = f"cannot write to {place}: {error.strerror}. Let this account write there, or set WEIGHBRIDGE_DATA_DIR to a folder where it can"
    return [Problem("", 0, name, said)]
