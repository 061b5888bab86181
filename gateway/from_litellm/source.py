"""Reading of LiteLLM's configuration: one file, those that it includes, and the values that stand in the environment."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gateway.configuration.file import ConfigError, Document, Value, read_document
from gateway.from_litellm.told import Account, Item

MOST_FILES: Final = 32
_REFERENCE: Final = re.compile(
    r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)\Z|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\}\Z|\$([A-Za-z_][A-Za-z0-9_]*)\Z"
)
_VARIABLES: Final = "environment_variables"
_STEERS: Final = re.compile(
    r"WEIGHBRIDGE_.*|PATH|IFS|ENV|BASH_.*|SHELLOPTS|BASHOPTS|PS[0-4]|PROMPT_COMMAND|CDPATH|HOME|TMPDIR|SHELL|LANG|LC_.*|LOCPATH|PYTHON.*|"
    r"LD_.*|DYLD_.*|GCONV_PATH|GLIBC_.*|MALLOC_.*|PERL5.*|RUBYOPT|RUBYLIB|NODE_OPTIONS|NODE_PATH|NODE_EXTRA_CA_CERTS|JAVA_TOOL_OPTIONS|"
    r"_JAVA_OPTIONS|GIT_SSH.*|GIT_EXEC_PATH|GIT_CONFIG.*|UV_.*|PIP_.*|VIRTUAL_ENV|OPENSSL_CONF|OPENSSL_MODULES|OPENSSL_ENGINES|SSL_CERT_.*|"
    r"SSLKEYLOGFILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(ALL|HTTPS?|NO)_PROXY",
    re.IGNORECASE,
)
"""Variables by which the gateway, a shell or what they load is steered."""


class Variables:
    """The values of `os.environ/NAME`: the file's own `environment_variables`, else this process's environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._own: dict[str, str] = {}

    def add(self, name: str, value: str) -> None:
        """Add a value of the file's own."""
        self._own[name] = value

    def literal(self, name: str) -> str | None:
        """Return the value that the file itself gives a variable."""
        own = self._own.get(name)
        return own if own and name_in(own) is None else None

    def value_of(self, name: str) -> str | None:
        """Return the value of a variable, None where nobody has set it."""
        own = self._own.get(name)
        if own is not None and (inner := name_in(own)) not in {None, name}:
            return None if steers(str(inner)) else self._environment.get(str(inner))
        if own is not None and name_in(own) is None:
            return own
        return None if steers(name) else self._environment.get(name)

    def resolved(self, value: Value) -> Value:
        """Return a value with its reference resolved; None for one whose variable nobody has set, and which has no default."""
        if not isinstance(value, str) or (name := name_in(value)) is None:
            return value
        found = self.value_of(name)
        return found or default_in(value)


def name_in(text: str) -> str | None:
    """Return the name of the variable that a text refers to; None for a text that is a value itself."""
    found = _REFERENCE.fullmatch(text.strip())
    return None if found is None else found[1] or found[2] or found[4]


def steers(name: str) -> bool:
    """Return True for a variable that steers this gateway, its shell or what they load, such as its pepper or PATH: none is a secret of
    LiteLLM's, and whoever wrote the file would steer them with what is set for it.
    """
    return _STEERS.fullmatch(name) is not None


def default_in(text: str) -> str | None:
    """Return the default that stands beside a variable's name, `${NAME:-default}`."""
    found = _REFERENCE.fullmatch(text.strip())
    return None if found is None else found[3] or None


class Source:
    """The documents of a configuration, the named one first."""

    def __init__(self, documents: list[Document]) -> None:
        self.documents = documents

    def items(self, key: str) -> Iterator[Item]:
        """Yield the elements of a list that may stand in several documents."""
        for document in self.documents:
            found = document.values.get(key)
            for index, value in enumerate(found if isinstance(found, list) else ()):
                yield Item(document, (key, index), value)

    def section(self, key: str) -> dict[str, Item]:
        """Return the values of a mapping that may stand in several documents; the last one counts."""
        return {
            name: Item(document, (key, name), value)
            for document in self.documents
            if isinstance(found := document.values.get(key), dict)
            for name, value in found.items()
        }

    def references(self) -> Iterator[str]:
        """Yield the name of every variable that a value refers to."""
        for document in self.documents:
            yield from _references(document.values)

    def places(self) -> Iterator[Item]:
        """Yield every section, with where it stands."""
        for document in self.documents:
            for key, value in document.values.items():
                yield Item(document, (key,), value)


def _references(value: Value) -> Iterator[str]:
    if isinstance(value, str):
        if (name := name_in(value)) is not None:
            yield name
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _references(inner)


def read_source(path: Path, account: Account, variables: Variables) -> Source:
    """Read a file and what it includes. Raises ConfigError where the file itself is not readable, or no YAML."""
    documents: list[Document] = []
    _read(path, account, documents)
    source = Source(documents)
    _learn(source, variables)
    return source


def add_documents(source: Source, documents: list[Document], variables: Variables) -> None:
    """Add documents that count before those that are there, as what LiteLLM has in its database does."""
    source.documents += documents
    _learn(source, variables)


def _learn(source: Source, variables: Variables) -> None:
    for name, item in source.section(_VARIABLES).items():
        if item.value is not None and not isinstance(item.value, list | dict):
            variables.add(name, str(item.value))


def _read(path: Path, account: Account, documents: list[Document]) -> None:
    document = read_document(path, foreign=True)
    documents.append(document)
    for problem in document.problems:
        account.note(problem.file, problem.line, problem.key, "changed", f"{problem.message}; the last one counts")
    included = document.values.get("include")
    for index, name in enumerate(included if isinstance(included, list) else [included] if included else []):
        item = Item(document, ("include", index), name)
        if not isinstance(name, str) or "\0" in name:
            account.tell(item, "not possible", "not read: it is no name of a file")
            continue
        other = path.parent / name
        # Not Path.resolve(), which fails on links that lead in a circle.
        if os.path.realpath(other) in {os.path.realpath(each.file) for each in documents}:
            account.tell(item, "not needed", "it was read already")
        elif not os.path.realpath(other).startswith(os.path.realpath(documents[0].file).rpartition("/")[0] + "/"):
            # What stands in a file is told line by line, and whoever wrote this one need not be who may read the other.
            account.tell(item, "not possible", "not read: it lies outside the configuration's folder; copy it there")
        elif len(documents) >= MOST_FILES:
            account.tell(item, "not possible", f"more than {MOST_FILES} files are not read")
        elif other.exists() and not other.is_file():
            # To open a pipe is to wait for whoever writes to it.
            account.tell(item, "not possible", "not read: it is no plain file")
        else:
            _include(other, item, account, documents)


def _include(path: Path, item: Item, account: Account, documents: list[Document]) -> None:
    try:
        _read(path, account, documents)
    except ConfigError as error:
        account.tell(item, "not possible", f"not read: {error.problems[0].message}")
    else:
        account.tell(item, "changed", "its content stands in the one file that was written")
