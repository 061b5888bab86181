"""`weighbridge selfhosted share`: whether several models fit on the same GPUs in turns."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gateway.commands.shared import print_json

if TYPE_CHECKING:
    from planner.plans.sharing import SharedFit


def share(
    models: Annotated[list[str], typer.Argument(metavar="MODEL…", help="Known models, such as llama-3-8b qwen2.5-7b.")],
    *,
    gpu: Annotated[str, typer.Option(help="h100, h200, b200, a100, a100-40gb, l40s or l4.")] = "h100",
    tp: Annotated[
        int, typer.Option(min=1, max=8, help="GPUs that they share, each model divided over all of them.")
    ] = 1,
    level: Annotated[
        int, typer.Option(min=1, max=2, help="Of those that sleep: 1 keeps their weights in main memory, 2 nowhere.")
    ] = 1,
    precision: Annotated[
        Literal["auto", "bf16", "fp8", "int8", "int4", "fp4"], typer.Option(help="Of all weights.")
    ] = "auto",
    main_memory: Annotated[
        float | None, typer.Option(min=1, max=100_000, help="GB of main memory that there are.")
    ] = None,
    copy_gb_per_s: Annotated[
        float,
        typer.Option(min=0.1, max=1_000, help="Between one GPU and main memory; PCIe 4 has 32 at most, 5 has 64."),
    ] = 25.0,
    disk_gb_per_s: Annotated[float, typer.Option(min=0.01, max=1_000, help="Of the disk with the weights.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, bytes in full.")] = False,
) -> None:
    """Show the fit of several models that share GPUs, one awake at a time: its cache, main memory, and the least time
    to wake.
    """
    from planner.plans.gpus import gpu_named
    from planner.plans.models import model_named
    from planner.plans.sharing import shared_fit

    found = shared_fit(
        [model_named(each) for each in models],
        gpu_named(gpu),
        tp=tp,
        level=2 if level == 2 else 1,  # noqa: PLR2004 - one of two
        precision=None if precision == "auto" else precision,
        main_memory_bytes=None if main_memory is None else round(main_memory * 1e9),
        copy_bytes_per_s=copy_gb_per_s * 1e9,
        disk_bytes_per_s=disk_gb_per_s * 1e9,
    )
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    else:
        _print(found)


def _print(found: "SharedFit") -> None:
    from gateway.table import print_table

    typer.echo(f"{len(found.lodgers)} models on {found.tp} x {found.gpu}, one awake at a time, level {found.level}\n")
    rows = [
        [
            each.model,
            f"{each.weight_bytes / 1e9:,.1f} GB {each.precision}",
            f"{each.kv_tokens:,}",
            f"{each.longest:,}",
            f"{each.sleep_s:,.1f} s",
            f"{each.wake_s:,.1f} s",
        ]
        for each in found.lodgers
    ]
    print_table(["model", "weights", "KV tokens awake", "context", "to sleep", "to wake"], rows, right=(2, 3, 4, 5))
    if found.main_memory_bytes:
        typer.echo(
            f"\nmain memory for the weights of all at a switch: {found.main_memory_bytes / 1e9:,.1f} GB, and what engines take besides"
        )
    typer.echo(
        "times are those of the copy alone, at the speed that was given: the gateway measures what a switch takes, and goes by that"
    )
    for each in found.lodgers:
        typer.echo(f"{each.model}: VLLM_SERVER_DEV_MODE=1 vllm serve … {shlex.join(each.flags)}")
