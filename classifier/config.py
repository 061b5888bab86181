"""The `classifier` section of the configuration."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class ClassifierSection(BaseModel):
    """How prompts are weighed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=True, description="When false, the structural heuristic scores every prompt.")
    artifact_dir: Path | None = Field(
        default=None, description="Folder with model.onnx and manifest.json; the packaged model when left out."
    )
