"""Prompts whose difficulty is known as a tier: the written set, its ladders, and chat prompts with weak tiers."""

from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq

from classifier.prediction import Prompt
from classifier.training.data import BadData, Problem

FOLDER: Final = Path(__file__).parent / "tiers"
LADDERS: Final = "ladders"
SECOND_LABELS: Final = "second_labels.tsv"
CHAT_FILE: Final = "chat_prompts.parquet"
TIERS: Final = range(4)
LANGUAGES: Final = ("en", "de", "es", "fr", "zh")
LADDER_LANGUAGES: Final = frozenset(
    {*LANGUAGES, "ar", "el", "he", "hi", "it", "ja", "ko", "nl", "pl", "pt", "ru", "th", "tr", "uk", "vi"}
)
"""Languages without a lexicon have some ladders too: what nobody can read must not look hard for that."""
HELD_KINDS: Final = frozenset({"agentic-office", "followup-work", "rewrite", "debug", "legal", "planning", "education"})
"""Kinds that were chosen, before anything was trained, to be judged and never learned from."""
HELD_ROWS: Final = Path(__file__).parent / "shapes" / "held.txt"
"""Ids of rows in the shapes of frameworks that are judged and never learned from, whatever their kind."""
CHAT_WEIGHT: Final = 0.6
"""Weight of a chat prompt: its tier is by origin alone. With .3 beside 12,407 other rows everyday tasks stood below Arena-Hard in .78 of rows held
out, with half as many of those in .82.
"""


class Tiered(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of a known tier."""

    row_id: str
    kind: str
    tier: int
    language: str
    prompt: Prompt
    of: str = ""
    """Id of the row that this one rewords."""
    weight: float = 1.0


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    kind: str
    tier: int
    lang: str
    user: str
    system: str = ""
    history: list[tuple[str, str]] = []
    tools: list[str] = []
    of: str = ""
    change: str = ""


def written(folder: Path = FOLDER) -> list[Tiered]:
    """Return the written set, one file a kind. Raises BadData with the lines that are wrong."""
    found: list[Tiered] = []
    problems: list[str] = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                row = msgspec.json.decode(line, type=_Row)
                found.append(_tiered(row))
            except (msgspec.DecodeError, ValueError) as error:
                problems.append(f"{path.name}, line {number}: {error}")
    if problems:
        raise BadData([Problem("the tier set has lines that are wrong", problems)])
    return found


def _tiered(row: _Row) -> Tiered:
    if row.tier not in TIERS or row.lang not in LANGUAGES or not row.user:
        raise ValueError("tier, lang or user is wrong")
    asked = [text for role, text in row.history if role == "user"]
    said = [text for role, text in row.history if role == "assistant"]
    return Tiered(
        row_id=row.id,
        kind=row.kind,
        tier=row.tier,
        language=row.lang,
        of=row.of,
        prompt=Prompt(
            text=row.user,
            system=row.system,
            before=asked[-1] if asked else "",
            history="\n".join(text for _, text in row.history),
            proposal=said[-1] if said else "",
            turns=1 + len(asked),
            tools=len(row.tools),
        ),
    )


def ladders(folder: Path = FOLDER) -> list[Tiered]:
    """Return topics with a request for each tier, for training alone. Raises BadData with the lines that are wrong."""
    found: list[Tiered] = []
    problems: list[str] = []
    for path in sorted((folder / LADDERS).glob("*.tsv")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            columns = line.split("\t")
            if len(columns) != 3 or columns[0] not in "0123" or columns[1] not in LADDER_LANGUAGES or not columns[2]:
                problems.append(f"{path.name}, line {number}")
                continue
            tier, language, text = columns
            found.append(
                Tiered(
                    row_id=f"{path.stem}-{number}",
                    kind=path.stem,
                    tier=int(tier),
                    language=language,
                    prompt=Prompt(text=text.replace("\\n", "\n")),
                )
            )
    if problems:
        raise BadData([Problem("the ladders need lines of tier, language and text", problems)])
    return found


def chat(folder: Path) -> list[Tiered]:
    """Return the chat prompts with the weak tier of their origin; none where the folder has no such file."""
    path = folder / CHAT_FILE
    if not path.is_file():
        return []
    rows = pq.read_table(path, columns=["source", "prompt", "weak_tier"]).to_pylist()
    return [
        Tiered(
            row_id=f"{row['source']}-{number}",
            kind=row["source"],
            tier=int(row["weak_tier"]),
            language="en",
            prompt=Prompt(text=row["prompt"]),
            weight=CHAT_WEIGHT,
        )
        for number, row in enumerate(rows)
        if row["weak_tier"] is not None
    ]


def second_labels(folder: Path = FOLDER) -> dict[str, int]:
    """Return the tiers that were given a second time by readers who saw the rubric and the prompts alone, by row id."""
    lines = (folder / SECOND_LABELS).read_text().splitlines()
    return {row_id: int(tier) for row_id, _, tier in (line.partition("\t") for line in lines)}


def held_rows() -> frozenset[str]:
    """Return the ids that HELD_ROWS names."""
    return frozenset(HELD_ROWS.read_text().split())


def learned_from(data: Path | None = None) -> list[Tiered]:
    """Return the training set of the difficulty model: the written set without what is held, ladders, and chat prompts."""
    held = held_rows()
    rows = [row for row in written() if row.kind not in HELD_KINDS and row.row_id not in held]
    return [*rows, *ladders(), *(chat(data) if data is not None else [])]
