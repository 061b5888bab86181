"""The tables of measurements: each one's order and state, and each question's answer."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, PrimaryKeyConstraint, String, Text
from sqlmodel import Field, SQLModel

ID_CHARS = 200
NAME_CHARS = 64


class MeasurementRow(SQLModel, table=True):
    """One measurement of one target. A process that works on it holds it, and says so every few seconds."""

    __tablename__: ClassVar[str] = "measurement"
    __table_args__ = (Index("ix_measurement_state", "state"),)

    measurement_id: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    target_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    state: str = Field(sa_column=Column(String(16), nullable=False))
    reason: str = Field(sa_column=Column(Text, nullable=False))
    """The reason why it stopped, in words; empty while it runs and after it finished."""
    questions: int = Field(sa_column=Column(Integer, nullable=False))
    budget_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))
    at_once: int = Field(sa_column=Column(Integer, nullable=False))
    max_tokens: int = Field(sa_column=Column(Integer, nullable=False))
    ordered_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    ordered_by: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    holder: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    touched_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    result: str | None = Field(sa_column=Column(Text, nullable=True))
    """JSON of a `Result`; null until it stopped."""
    tuning_version: int | None = Field(sa_column=Column(Integer, nullable=True))
    """The tuning that it was accepted as."""


class CalibrationAnswerRow(SQLModel, table=True):
    """One question of a measurement. It is written with the most that it may cost before the question is asked."""

    __tablename__: ClassVar[str] = "calibration_answer"
    __table_args__ = (PrimaryKeyConstraint("measurement_id", "question_id", name="pk_calibration_answer"),)

    measurement_id: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    question_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    outcome: str = Field(sa_column=Column(String(16), nullable=False))
    said: str = Field(sa_column=Column(Text, nullable=False))
    """The answer as it was read, or its end where nothing could be. The questions are ours, so it is no caller's."""
    cost_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))
    ttft_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    tpot_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    input_tokens: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    output_tokens: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    estimated_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
