"""Step times that can be added up by hand."""

from planner.plans.roofline import StepTimes
from planner.simulate.engine import Engine, EngineSpec, Happening, Job

HAND = StepTimes(
    fixed_s=1.0,
    weights_s=0.0,
    experts_s=0.0,
    expert_share=1.0,
    prompt_s=0.0,
    answer_s=0.0,
    reduce_s=0.01,
    pair_s=0.0,
    kv_s=0.0,
)
"""A step takes a second, and a hundredth of one for each token that it computes."""

GROWING = StepTimes(
    fixed_s=1.0,
    weights_s=0.0,
    experts_s=0.0,
    expert_share=1.0,
    prompt_s=0.0,
    answer_s=0.0,
    reduce_s=0.0,
    pair_s=0.0,
    kv_s=0.5,
)
"""A step takes a second, and half of one for each resident token."""


def spec(
    kv_tokens: int = 1_024,
    *,
    shared_tokens: int = 16,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    priority_scheduling: bool = False,
    prefix_caching: bool = True,
) -> EngineSpec:
    return EngineSpec(
        kv_tokens=kv_tokens,
        block_tokens=4,
        shared_tokens=shared_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        priority_scheduling=priority_scheduling,
        prefix_caching=prefix_caching,
    )


def job(prompt: int, output: int, blocks: tuple[int, ...] = (), *, at: float = 0.0, priority: int = 0) -> Job:
    return Job(arrived_at=at, prompt_tokens=prompt, output_tokens=output, blocks=blocks, priority=priority)


class Told:
    """What an engine told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Happening, Job]] = []

    def __call__(self, at: float, what: Happening, which: Job) -> None:
        self.events.append((at, what, which))

    def of(self, which: Job) -> list[tuple[float, Happening]]:
        return [(round(at, 9), what) for at, what, each in self.events if each is which]


def run(engine: Engine) -> None:
    engine.advance(1e9)
    assert engine.empty
