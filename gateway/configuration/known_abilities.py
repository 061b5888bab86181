"""Validation of `ability`: that the classifier has a row of that name, or knows such a model."""

from collections.abc import Mapping

from classifier.config import ClassifierSection
from classifier.known_models import known_model, nearest_names
from classifier.shipped_rows import shipped_rows
from classifier.tuning import Ability
from gateway.configuration.file import Document, Problem
from providers.catalog import Catalog
from providers.config import ProvidersSection
from providers.known_rows import NO_ROW


class ShippedRows:
    """The rows that targets have without any tuning, for those who ask before a classifier is loaded."""

    def __init__(self, section: ClassifierSection, catalog: Catalog) -> None:
        table = shipped_rows(section.artifact_dir) if section.enabled else {}
        self.rows = {target_id: table[name] for target_id, name in catalog.abilities.items() if name in table}
        """Rows by target id."""


def ability_problems(providers: ProvidersSection, classifier: ClassifierSection, document: Document) -> list[Problem]:
    """Return a problem, with its line, for each `ability` that names nothing, with the nearest names."""
    named = [
        (index, model.ability)
        for index, model in enumerate(providers.models)
        if model.ability not in {None, NO_ROW} and known_model([model.ability or ""]) is None
    ]
    # The table is read only when one of them may be in it alone; where it cannot be, the start says why.
    table = shipped_rows(classifier.artifact_dir) if named else {}
    if not table:
        return []
    return [
        document.problem(("providers", "models", index, "ability"), _nothing(name or "", table))
        for index, name in named
        if name not in table
    ]


def _nothing(name: str, table: Mapping[str, Ability]) -> str:
    near = nearest_names(name)
    meant = f"; did you mean {' or '.join(f'`{each}`' for each in near)}?" if near else "."
    return (
        f"no known model and no row is called `{name}`{meant} Leave it out to have the model found by its names; `{NO_ROW}` gives it "
        f"no row; `weighbridge classifier explain --all hello` lists the {len(table)} rows"
    )
