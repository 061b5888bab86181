"""Reads command lines and engine arguments with vLLM's own code. Run by test_arguments.py in vLLM's environment.

From stdin a JSON object: `lines`, lists of words behind `vllm serve`, and `keywords`, mappings of engine arguments. To stdout, for each, what
came of it: the fields that vLLM has now, or the refusal as a text.
"""

import contextlib
import dataclasses
import io
import json
import sys
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _told(arguments: AsyncEngineArgs) -> dict[str, Any]:
    return {each.name: _plain(getattr(arguments, each.name)) for each in dataclasses.fields(arguments)}


def _line(words: list[str]) -> dict[str, Any] | str:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            given = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
            validate_parsed_serve_args(given)
            if given.model_tag:
                given.model = given.model_tag
            return _told(AsyncEngineArgs.from_cli_args(given))
    except SystemExit:
        return said.getvalue() or "refused"
    except Exception as error:  # noqa: BLE001 - whatever it refuses is the answer
        return f"{type(error).__name__}: {error}"


def _keywords(fields: dict[str, Any]) -> dict[str, Any] | str:
    try:
        return _told(AsyncEngineArgs(**fields))
    except Exception as error:  # noqa: BLE001 - as above
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    answer = {
        "lines": [_line(words) for words in asked["lines"]],
        "keywords": [_keywords(each) for each in asked["keywords"]],
    }
    json.dump(answer, sys.stdout)
