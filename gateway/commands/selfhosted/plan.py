"""`weighbridge selfhosted plan`: what a model needs on our own GPUs, how fast it is, what it costs and how it is started."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from cost.shown import percent
from gateway.commands.shared import amount_option, print_json

if TYPE_CHECKING:
    from planner.plans.crowd import Crowd
    from planner.plans.mixture import Mixture
    from planner.plans.models import ModelShape
    from planner.plans.offload import Offload
    from planner.plans.outlook import Outlook
    from planner.plans.planning import Candidate, Plan, Question
    from planner.plans.split import Split
    from planner.plans.year import Year

_TPOT_TARGET_S: Final = 0.05


def plan(
    *,
    model: Annotated[
        str, typer.Option(help="A known model, such as llama-3-70b, or your name for --config-json's.")
    ] = "llama-3-70b",
    gpu: Annotated[
        str,
        typer.Option(
            help="h100, h200, b200, gb200, a100, a100-40gb, l40s, l4, rtx-6000-ada, rtx-pro-6000, mi300x, mi325x or mi355x."
        ),
    ] = "h100",
    qps: Annotated[
        float | None,
        typer.Option(
            min=1e-6, max=1e9, help="Requests a second at the peak to plan for; 10 without --users.", show_default=False
        ),
    ] = None,
    users: Annotated[
        int | None, typer.Option(min=1, max=100_000_000, help="Instead: users of all teams at once, at the peak.")
    ] = None,
    think_time: Annotated[
        float | None,
        typer.Option(min=0, max=86_400, help="--users: seconds between an answer's end and a user's next request."),
    ] = None,
    team_peak: Annotated[
        int | None, typer.Option(min=1, max=100_000_000, help="--users: the most that one team has at once.")
    ] = None,
    hours: Annotated[
        str | None,
        typer.Option(help="24 or 168 shares of the busiest hour, comma-separated, instead of a published week's."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="--users: the models that requests are routed between without GPUs; else WEIGHBRIDGE_CONFIG.",
        ),
    ] = None,
    input_tokens: Annotated[int, typer.Option(min=1, max=10_000_000, help="Of a mean prompt.")] = 1_000,
    output_tokens: Annotated[int, typer.Option(min=1, max=10_000_000, help="Of a mean answer.")] = 300,
    ttft_p99: Annotated[
        float,
        typer.Option(
            min=0.001, max=3_600, help="Seconds to the first token, 99 of 100 requests; not promised for --tier batch."
        ),
    ] = 1.0,
    tpot_p99: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=60,
            help="Seconds for each further token, 99 of 100 requests; 0.05 if left out, none for --tier batch.",
        ),
    ] = None,
    precision: Annotated[
        Literal["auto", "bf16", "fp8", "int8", "int4", "fp4"], typer.Option(help="Of the weights.")
    ] = "auto",
    kv_precision: Annotated[Literal["auto", "bf16", "fp8"], typer.Option(help="Of the KV cache.")] = "auto",
    tp: Annotated[str, typer.Option(help="GPUs that divide each layer: a number, or auto.")] = "auto",
    pp: Annotated[str, typer.Option(help="Pipeline stages: a number, or auto.")] = "auto",
    dp: Annotated[
        str, typer.Option(help="Ranks with a batch each that share a model's experts: a number, or auto.")
    ] = "auto",
    prefix_hit_rate: Annotated[
        float, typer.Option(min=0, max=0.99, help="The part of prompts that is found in the cache, ours and theirs.")
    ] = 0.0,
    variation: Annotated[
        float, typer.Option(min=0, max=10, help="How lengths vary: standard deviation by mean.")
    ] = 0.5,
    max_context: Annotated[int | None, typer.Option(min=1, help="vLLM's --max-model-len.")] = None,
    memory_utilisation: Annotated[float, typer.Option(min=0.1, max=0.99, help="vLLM's share of the memory.")] = 0.92,
    gpu_usd_hour: Annotated[str | None, typer.Option(help="What one GPU costs an hour.")] = None,
    reserved_usd_hour: Annotated[
        str | None, typer.Option(help="What one GPU costs an hour that is paid for all year.")
    ] = None,
    overhead: Annotated[str, typer.Option(help="Storage, network and staff on top: 1.3 is 30 % more.")] = "1",
    comparator: Annotated[
        list[str] | None,
        typer.Option(help="A known price, or NAME=INPUT/OUTPUT in dollars per million tokens. Again for more."),
    ] = None,
    saving: Annotated[str, typer.Option(help="The part to be saved.")] = "0.40",
    tier: Annotated[
        Literal["interactive", "batch"], typer.Option(help="Batch work is compared with half the list price.")
    ] = "interactive",
    profile: Annotated[
        Literal["low", "peak", "auto"],
        typer.Option(help="Speculative decoding: on for a low load, off at the peak, or as it pays."),
    ] = "auto",
    draft_model: Annotated[
        str | None, typer.Option(help="Guesses with this model (EAGLE or a small one) instead of the prompt's n-grams.")
    ] = None,
    lora: Annotated[int, typer.Option(min=0, max=256, help="LoRA adapters that are resident at once.")] = 0,
    lora_rank: Annotated[int, typer.Option(min=1, max=512, help="Their rank.")] = 16,
    kv_events_port: Annotated[
        int,
        typer.Option(
            min=0, max=65_534, help="Publish KV events there, and replays on the next port; 0 publishes none."
        ),
    ] = 5_557,
    kv_offload_gib: Annotated[
        int, typer.Option(min=0, max=8_192, help="Main memory of a replica for KV blocks that leave its GPUs, in GiB.")
    ] = 0,
    kv_offload: Annotated[
        Literal["native", "lmcache"],
        typer.Option(help="Who moves them: vLLM itself, or LMCache (in an image that has it)."),
    ] = "native",
    offload_hits: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="The part of prompt tokens that main memory would have and the GPUs' caches not: does KV offload pay?",
        ),
    ] = 0.0,
    offload_gb_per_s: Annotated[
        float, typer.Option(min=0.1, max=1_000, help="Between one GPU and main memory, for that.")
    ] = 25.0,
    split: Annotated[
        bool,
        typer.Option("--split", help="Plan prefill and decode on replicas of their own, too, by vLLM's NixlConnector."),
    ] = False,
    spare: Annotated[int, typer.Option(min=0, max=1_000, help="Replicas beyond what the load needs.")] = 0,
    efficiency: Annotated[
        str, typer.Option(help="vllm (cautious), or ceiling (hopeful: NVIDIA's own figures).")
    ] = "vllm",
    tokens_per_gpu: Annotated[
        list[str] | None,
        typer.Option(help="Measured tokens a second and GPU instead of the roofline; NAME=FIGURE in a mixture."),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=3,
            help="The part by which steps take longer than the roofline says; by default what its fit is off.",
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="The repository or folder of (quantised) weights.")] = None,
    config_json: Annotated[Path | None, typer.Option(help="A model's config.json.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, max=10_000, help="Instead of the model's own.")] = None,
    check_kv_bytes: Annotated[
        int | None, typer.Option(min=1, help="What a document says a token takes in the cache: is it right?")
    ] = None,
    mix: Annotated[str | None, typer.Option(help="Several models: NAME:SHARE,NAME:SHARE.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, bytes and dollars in full.")
    ] = False,
) -> None:
    """Plan a pool: memory, tensor parallelism, replicas, latency, dollars, and vLLM's command line."""
    import msgspec

    from gateway.commands.selfhosted.plan_year import print_crowd, year_as_json, year_for
    from planner.plans.comparators import USUAL_COMPARATORS, comparator_named
    from planner.plans.config_json import model_from_file
    from planner.plans.crowd import planned_for
    from planner.plans.efficiency import efficiency_named
    from planner.plans.gpus import gpu_named
    from planner.plans.models import model_named
    from planner.plans.offload import offload_of
    from planner.plans.outlook import outlook_of
    from planner.plans.planning import Question
    from planner.plans.planning import plan as planned
    from planner.plans.sizing import Targets, Work
    from planner.plans.split import split_of, split_where_possible

    def question(shape: "ModelShape", rate: float, measured: float | None) -> "Question":
        return Question(
            model=shape,
            gpu=gpu_named(gpu),
            requests_per_s=rate,
            work=Work(
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                prefix_hit_rate=prefix_hit_rate,
                variation=variation,
            ),
            targets=Targets(
                ttft_p99_s=None if tier == "batch" else ttft_p99, tpot_p99_s=_tpot_target_s(tpot_p99, tier)
            ),
            efficiency=efficiency_named(efficiency),
            precision=None if precision == "auto" else precision,
            kv_precision=None if kv_precision == "auto" else kv_precision,
            tp=_count(tp, "--tp"),
            pp=_count(pp, "--pp"),
            dp=_count(dp, "--dp"),
            usd_per_gpu_hour=None if gpu_usd_hour is None else amount_option(gpu_usd_hour, "--gpu-usd-hour", 0, 10_000),
            overhead=amount_option(overhead, "--overhead", 1, 100),
            max_context=max_context,
            memory_utilisation=memory_utilisation,
            comparators=tuple(map(comparator_named, comparator or USUAL_COMPARATORS)),
            saving=amount_option(saving, "--saving", 0, Decimal("0.99")),
            batch=tier == "batch",
            profile=profile,
            draft=draft_model,
            adapters=lora,
            adapter_rank=lora_rank,
            kv_events_port=kv_events_port or None,
            kv_offload_gib=kv_offload_gib,
            kv_offload=kv_offload,
            spare=spare,
            tokens_per_gpu=measured,
            margin=margin,
            weights=weights,
            given_kv_bytes=check_kv_bytes,
        )

    crowd = _crowd(users, think_time, team_peak, qps=qps, mix=mix, tier=tier)
    rate = 10.0 if qps is None else qps
    if mix is not None:
        _mixed(mix, rate, tokens_per_gpu or [], question, as_json=as_json)
        return
    shape = model_named(model) if config_json is None else model_from_file(model, config_json)
    if kv_heads is not None:
        shape = msgspec.structs.replace(shape, kv_heads=kv_heads)
    asked, load = question(shape, rate, _measured(tokens_per_gpu or [])), None
    if crowd is None:
        answer = planned(asked)
    else:
        answer, load = planned_for(crowd, asked)
        asked = msgspec.structs.replace(asked, requests_per_s=answer.requests_per_s)
    year = year_for(asked, answer, load, hours=hours, reserved_usd_hour=reserved_usd_hour, config=config)
    hope = outlook_of(asked, answer)
    apart = (split_of if split else split_where_possible)(asked, answer)
    kept = (
        offload_of(asked, answer, hits=offload_hits, copy_bytes_per_s=offload_gb_per_s * 1e9) if offload_hits else None
    )
    if as_json:
        parts = {"hopeful": hope, "split": apart, "offload": kept}
        told = {name: None if each is None else each.as_json() for name, each in parts.items()}
        print_json({**answer.as_json(), **told, **year_as_json(load, year)})
    else:
        if load is not None:
            print_crowd(load)
        _print_plan(answer, hope, year)
        if kept is not None:
            typer.echo(f"\n{kept.verdict}{'' if kept.holds_tokens is None else _held(kept)}")
        if apart is not None and split:
            _print_split(apart)
        elif apart is not None and apart.pays:
            typer.echo(f"! prefill and decode on replicas of their own would need {apart.verdict}: --split")


def _crowd(
    users: int | None, think_s: float | None, team_peak: int | None, *, qps: float | None, mix: str | None, tier: str
) -> "Crowd | None":
    """Return the users to plan for; None where a rate is given. Raises PlanRefused for options that do not go together."""
    from planner.plans.crowd import Crowd
    from planner.plans.plan_errors import PlanRefused

    if users is None:
        if think_s is not None or team_peak is not None:
            raise PlanRefused("--think-time and --team-peak go with --users")
        return None
    if qps is not None or mix is not None or tier == "batch":
        raise PlanRefused("--users are people who wait for one model: not with --qps, --mix or --tier batch")
    if think_s is None:
        raise PlanRefused(
            "--users needs --think-time: the seconds between the end of an answer and the same user's next request, "
            "as your logs have it, such as 30"
        )
    return Crowd(users=users, think_s=think_s, team_peak=team_peak)


def _held(kept: "Offload") -> str:
    return f"; a replica keeps {kept.holds_tokens:,} tokens in main memory beside {kept.gpu_tokens:,} in its GPUs"


def _print_split(apart: "Split") -> None:
    from gateway.table import print_table

    rows = [
        [
            name,
            f"{apart.tp}",
            f"{side.replicas:,}",
            f"{side.gpus:,}",
            f"{side.rate:,.2f}",
            f"{side.operation.ttft_p99_s * 1e3:,.0f} ms",
            "" if name == "prefill" else f"{side.operation.tpot_p99_s * 1e3:,.1f} ms",
        ]
        for name, side in (("prefill", apart.prefill), ("decode", apart.decode))
    ]
    rows.append(
        [
            "both",
            "",
            "",
            f"{apart.gpus:,}",
            "",
            f"{apart.ttft_p99_s * 1e3:,.0f} ms",
            f"{apart.tpot_p99_s * 1e3:,.1f} ms",
        ]
    )
    typer.echo("\nprefill and decode on replicas of their own:")
    headings = ["", "TP", "replicas", "GPUs", "requests/s each", "TTFT p99", "TPOT p99"]
    print_table(headings, rows, right=(1, 2, 3, 4, 5, 6))
    typer.echo(
        f"  {apart.verdict}; a mean prompt hands over {apart.handed_bytes / 1e6:,.1f} MB in {apart.handed_s * 1e3:,.1f} ms at 50 GB/s a GPU"
    )
    for name, side in (("prefill", apart.prefill), ("decode", apart.decode)):
        typer.echo(f"{name}:\n  {side.launch.command}")
    typer.echo(
        "  each with VLLM_NIXL_SIDE_CHANNEL_HOST, its own address, in an image with NIXL. The gateway asks a replica once: who asks prefill "
        "and then decode\n  (vLLM's proxy, or llm-d's) stands before them, and is the pool's replica"
    )
    for warning in apart.warnings:
        typer.echo(f"! {warning}")


def _tpot_target_s(told_s: float | None, tier: str) -> float | None:
    """Return the target of a further token: as fast as the scaler keeps it by default, unless nobody reads along."""
    return _TPOT_TARGET_S if told_s is None and tier != "batch" else told_s


def _count(text: str, option: str) -> int | None:
    from planner.plans.plan_errors import PlanRefused

    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= 1_024):  # noqa: PLR2004 - more than any machine has
        raise PlanRefused(f"{option} is a number of GPUs, or auto")
    return int(text[:4])


def _measured(given: list[str]) -> float | None:
    from planner.plans.plan_errors import PlanRefused

    if len(given) > 1:
        raise PlanRefused("--tokens-per-gpu is given once, but in a mixture")
    return float(amount_option(given[0], "--tokens-per-gpu", 1, 10_000_000)) if given else None


def _mixed(mix: str, qps: float, measured: list[str], question: Any, *, as_json: bool) -> None:
    from planner.plans.mixture import mixture_of, shares_of
    from planner.plans.models import model_named
    from planner.plans.plan_errors import PlanRefused

    given: dict[str, float] = {}
    for each in measured:
        name, equals, figure = each.partition("=")
        if not equals:
            raise PlanRefused("in a mixture write --tokens-per-gpu NAME=FIGURE")
        given[name] = float(amount_option(figure, "--tokens-per-gpu", 1, 10_000_000))
    parts = {
        name: (share, question(model_named(name), float(Decimal(repr(qps)) * share), None))
        for name, share in shares_of(mix).items()
    }
    found = mixture_of(parts, requests_per_s=qps, tokens_per_gpu=given)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found, builtin_types=(Decimal,)))
    else:
        _print_mixture(found)


def _print_plan(answer: "Plan", hope: "Outlook | None", year: "Year") -> None:
    from gateway.commands.selfhosted.plan_year import print_year
    from gateway.table import print_table
    from planner.plans.launch import defaults_of

    work, memory, usual = answer.work, answer.memory, defaults_of(answer.gpu)
    typer.echo(
        f"{answer.model.name} on {answer.gpu.title}: {answer.requests_per_s:g} requests/s of {work.input_tokens:,} + "
        f"{work.output_tokens:,} tokens\n"
    )
    rows = [
        ["weights", f"{_gb(memory.weight_bytes)} {answer.precision}", answer.reasons["precision"]],
        [
            "KV cache a token",
            f"{memory.kv_bytes_per_token:,} B {answer.kv_precision}",
            answer.reasons["kv_bytes_per_token"],
        ],
        ["tensor parallel", str(answer.tp), answer.reasons["tp"]],
        *([["pipeline stages", f"{answer.pp} ({answer.nodes} nodes)", answer.reasons["pp"]]] if answer.pp > 1 else []),
        *([["data-parallel ranks", str(answer.dp), "they share the experts"]] if answer.dp > 1 else []),
        ["KV cache a replica", f"{memory.kv_tokens:,} tokens", _left(answer)],
        ["max-model-len", f"{answer.max_context:,}", answer.reasons["max_context"]],
        [
            "max-num-seqs",
            f"{answer.limits.sequences:,}",
            f"{answer.reasons['max_num_seqs']} (vLLM's own: {usual.sequences:,})",
        ],
        [
            "max-num-batched-tokens",
            f"{answer.limits.batched_tokens:,}",
            f"{answer.reasons['max_num_batched_tokens']} (vLLM's own: {usual.batched_tokens:,})",
        ],
        ["replicas", f"{answer.replicas:,} ({_gpus(answer.gpus)})", answer.reasons["replicas"]],
        ["speculative decoding", "on" if answer.speculation.on else "off", answer.speculation.why],
    ]
    print_table(["", "plan", "why"], rows)
    _print_latency(answer)
    _print_candidates(answer)
    _print_cost(answer)
    print_year(year)
    if hope is not None:
        _print_outlook(answer, hope)
    typer.echo(f"\nvLLM {answer.launch.version}:\n  {answer.launch.command}")
    typer.echo(
        "  in a pod or container of its own, which only the gateway reaches: it listens on every address, and VLLM_API_KEY is its key"
    )
    if answer.launch.nodes > 1:
        typer.echo(
            f"  on each of {answer.launch.nodes} nodes, with --nnodes {answer.launch.nodes} --node-rank 0, 1, … and --master-addr, the "
            "first one's address; all but the first with --headless"
        )
    typer.echo(f"\nspeed: {answer.throughput_source}{_fit(answer)}{_longer(answer)}\n  {answer.efficiency.source}")
    for warning in answer.warnings:
        typer.echo(f"! {warning}")


def _fit(answer: "Plan") -> str:
    if answer.fit is None:
        return ""
    return (
        f", off by {percent(answer.fit.rms, 0)} (root mean square) and at most {percent(answer.fit.worst, 0, signed=True)} from "
        f"{answer.fit.figures} published figures of this GPU"
    )


def _longer(answer: "Plan") -> str:
    return f"; every step is taken {percent(answer.margin, 0)} longer" if answer.margin else ""


def _print_outlook(answer: "Plan", hope: "Outlook") -> None:
    """Print the cautious and the hopeful plan side by side."""
    from cost.shown import money
    from gateway.table import print_table

    rows = []
    for title, each in (("cautious, above", answer), ("hopeful", hope.hopeful)):
        cost, found = each.cost, each.operation
        rows.append(
            [
                title,
                _degrees(each),
                f"{each.replicas:,}",
                f"{each.gpus:,}",
                "-" if found is None else f"{found.ttft_p99_s * 1e3:,.0f} ms",
                "-" if found is None else f"{found.tpot_s * 1e3:,.1f} ms",
                "-" if cost is None else money(cost.usd_per_hour),
                "-" if cost is None else f"${cost.usd_per_million_planned:.3f}",
                "-" if cost is None else f"${cost.usd_per_million_full:.3f}",
                "" if cost is None else ", ".join(saving.verdict for saving in cost.savings),
            ]
        )
    typer.echo("\ncautious and hopeful:")
    headings = ["", "TP", "replicas", "GPUs", "TTFT p99", "TPOT", "an hour", "a million", "fully used", "verdicts"]
    print_table(headings, rows, right=(1, 2, 3, 4, 5, 6, 7, 8))
    typer.echo(f"  {hope.deciding}")
    for difference in hope.differences:
        typer.echo(f"  {difference}")
    if hope.hopeful.fit is not None:
        typer.echo(f"  hopeful is {hope.hopeful.throughput_source}{_fit(hope.hopeful)}")


def _left(answer: "Plan") -> str:
    memory = answer.memory
    return (
        f"{_gb(memory.kv_bytes)} of {_gb(memory.usable_bytes)} usable are left beside weights, "
        f"{_gb(memory.activation_bytes)} for work and {_gb(memory.reserve_bytes)} in reserve"
    )


def _print_latency(answer: "Plan") -> None:
    from gateway.table import print_table

    found = answer.operation
    if found is None:
        typer.echo("\n! by the roofline these replicas could not keep up with the tokens that were given as measured")
        return
    rows = [
        ["TTFT p50", f"{found.ttft_p50_s * 1e3:,.0f} ms", ""],
        ["TTFT p99", f"{found.ttft_p99_s * 1e3:,.0f} ms", _target(answer.targets.ttft_p99_s)],
        ["TPOT mean", f"{found.tpot_s * 1e3:,.1f} ms", ""],
        ["TPOT p99", f"{found.tpot_p99_s * 1e3:,.1f} ms", _target(answer.targets.tpot_p99_s)],
        ["running a replica", f"{found.running:,.1f}", f"{percent(found.kv_use)} of its cache"],
        ["longest pause of a stream", f"{found.stall_s * 1e3:,.0f} ms", "a step full of prompts"],
    ]
    typer.echo("\nexpected, queueing included (M/G/1 for prefill, M/G/k for a place; arrivals blind to queues):")
    print_table(["", "expected", "target"], rows, right=(1,))


def _target(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds * 1e3:,.0f} ms"


def _degrees(each: "Plan | Candidate") -> str:
    stages = "" if each.pp == 1 else f" x {each.pp}"
    return f"{each.tp}{stages}" + ("" if each.dp == 1 else f", {each.dp} ranks")


def _print_candidates(answer: "Plan") -> None:
    from gateway.table import print_table

    rows = [
        [
            _degrees(each),
            f"{each.memory.kv_tokens:,}",
            "-" if each.obstacle else f"{each.rate:,.2f}",
            "-" if each.replicas is None else f"{each.replicas:,}",
            "-" if each.gpus is None else f"{each.gpus:,}",
            each.obstacle or ("chosen" if _degrees(each) == _degrees(answer) else ""),
        ]
        for each in answer.candidates
    ]
    typer.echo("\nways to divide it:")
    print_table(["TP", "KV tokens", "requests/s each", "replicas", "GPUs", ""], rows, right=(0, 1, 2, 3, 4))


def _print_cost(answer: "Plan") -> None:
    from cost.shown import money
    from gateway.table import print_table

    cost = answer.cost
    if cost is None:
        return
    typer.echo(
        f"\n{money(cost.usd_per_hour)} an hour at the peak, paid by the GPU: {cost.gpus:,} GPUs at "
        f"{money(cost.usd_per_gpu_hour)} ({cost.price_source}), overhead {cost.overhead}"
    )
    typer.echo(
        f"a million tokens: ${cost.usd_per_million_planned:.3f} at the planned load, which is {percent(cost.utilisation, 0)} of "
        f"full use; ${cost.usd_per_million_full:.3f} fully used\n"
    )
    rows = [
        [
            each.title,
            each.as_of,
            f"${each.comparator_usd_per_million:.3f}",
            "-" if each.saving_at_planned_load is None else percent(each.saving_at_planned_load, 0),
            "never" if each.required_utilisation is None else percent(each.required_utilisation),
            each.verdict,
        ]
        for each in cost.savings
    ]
    print_table(
        ["against", "as of", "a million", "saved", f"use for {percent(cost.savings_target, 0)}", "verdict"],
        rows,
        right=(2, 3, 4),
    )


def _print_mixture(found: "Mixture") -> None:
    from cost.shown import money
    from gateway.table import print_table

    typer.echo(f"{found.requests_per_s:,g} requests/s, {found.tokens_per_s:,.0f} tokens/s\n")
    rows = [
        [
            part.model,
            percent(part.share, 0),
            f"{part.tokens_per_s:,.0f}",
            f"{part.gpus:,}",
            f"{part.tokens_per_gpu:,.0f}",
            "-" if part.usd_per_year is None else money(part.usd_per_year),
            part.source,
        ]
        for part in found.parts
    ]
    rows.append(["all", "100 %", f"{found.tokens_per_s:,.0f}", f"{found.gpus:,}", "", _year(found.usd_per_year), ""])
    print_table(["model", "share", "tokens/s", "GPUs", "tokens/s a GPU", "a year", "by"], rows, right=(1, 2, 3, 4, 5))


def _year(dollars: Decimal | None) -> str:
    from cost.shown import money

    return "-" if dollars is None else money(dollars)


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number:,} GPUs"


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
