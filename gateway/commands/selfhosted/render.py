"""`weighbridge selfhosted render`: a planned or configured pool as Kubernetes, Ray, Compose or a shell takes it."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.commands.shared import print_json

if TYPE_CHECKING:
    from planner.plans.planning import Plan
    from planner.plans.render_shared import SharedServing
    from planner.plans.serving import Place, Serving

_MOST_PLAN_BYTES = 4_000_000
PRODUCT = "nvidia.com/gpu.product"

What = Literal["k8s", "ray", "compose", "command", "gateway"]


def render(
    what: Annotated[
        What, typer.Argument(metavar="WHAT", help="k8s, ray, compose, command, or gateway for the gateway's own part.")
    ],
    *,
    pool: Annotated[str, typer.Option(help="The pool's name, or that of GPUs which pools of the configuration share.")],
    plan: Annotated[
        Path | None,
        typer.Option(help="What `weighbridge selfhosted plan --json` printed; otherwise the configuration."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The configuration file; otherwise WEIGHBRIDGE_CONFIG.")
    ] = None,
    part: Annotated[
        Literal["prefill", "decode"] | None,
        typer.Option(help="k8s and command: this side of the plan, as `plan --split` divides it."),
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=1, max=10_000, help="Instead of the plan's.")] = None,
    min_replicas: Annotated[int | None, typer.Option(min=0, max=10_000, help="Never fewer.")] = None,
    max_replicas: Annotated[int | None, typer.Option(min=1, max=10_000, help="Never more.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Kubernetes: the namespace.")] = None,
    image: Annotated[str | None, typer.Option(help="Instead of vLLM's own image of the planned version.")] = None,
    weights_claim: Annotated[
        str | None, typer.Option(help="Kubernetes: the PersistentVolumeClaim that keeps the weights.")
    ] = None,
    weights_class: Annotated[
        str | None,
        typer.Option(help="Kubernetes: a StorageClass, such as a node's own disk, for a volume of each pod."),
    ] = None,
    token_secret: Annotated[
        str | None, typer.Option(help="Kubernetes: the Secret whose key `token` lets weights be downloaded.")
    ] = None,
    key_secret: Annotated[
        str | None,
        typer.Option(
            help="Kubernetes: the Secret whose key `api-key` engines ask for; NAME-key by default, `none` for no key."
        ),
    ] = None,
    gateway_namespace: Annotated[str | None, typer.Option(help="Kubernetes: where the gateway's pods are.")] = None,
    monitoring_namespace: Annotated[str | None, typer.Option(help="Kubernetes: where Prometheus is.")] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Kubernetes: the GPU that nodes must have; the plan's, where there is one.")
    ] = None,
    node_label: Annotated[
        list[str] | None,
        typer.Option(help="Kubernetes: KEY=VALUE that nodes must have, instead of the GPU's. Again for more."),
    ] = None,
    spot: Annotated[
        bool, typer.Option("--spot", help="Kubernetes: for batch work, on nodes that the cloud takes back.")
    ] = False,
    keep_replicas: Annotated[
        bool, typer.Option("--keep-replicas", help="Kubernetes: leave their number as it is, when applying again.")
    ] = False,
    one_machine: Annotated[
        bool,
        typer.Option(
            "--one-machine", help="gateway: for the engines of `render compose`, not of a Kubernetes Service."
        ),
    ] = False,
    prometheus: Annotated[str | None, typer.Option(help="Kubernetes: where KEDA asks Prometheus.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Write the files that start a pool, and what the gateway must know of it."""
    import msgspec

    from planner.plans.serving import checked, warnings_of

    answer = None if plan is None else _read_plan(plan)
    shared = None if answer is not None else _shared(config, pool)
    if shared is not None:
        found = shared.pools[0]
    else:
        found = _configured(config, pool) if answer is None else _planned(answer, pool)
    if part is not None:
        found = _side_of(what, plan, found, part)
    changes: dict[str, Any] = {
        "replicas": replicas,
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "namespace": namespace,
        "image": image,
        "weights_claim": weights_claim,
        "token_secret": token_secret,
        "prometheus": prometheus,
        "weights_class": weights_class,
        "gateway_namespace": gateway_namespace,
        "monitoring_namespace": monitoring_namespace,
        "keep_replicas": keep_replicas,
        "place": _place(found, gpu, node_label or [], spot=spot),
    }
    # A name that is None stays as it is, and so the want of a key has to be said apart.
    found = msgspec.structs.replace(found, key_secret=_key_secret(found, key_secret))
    if replicas is not None and max_replicas is None:
        changes["max_replicas"] = max(replicas, found.max_replicas)
    serving = checked(
        msgspec.structs.replace(found, **{name: value for name, value in changes.items() if value is not None})
    )
    for warning in warnings_of(serving) if what in ("k8s", "compose") else ():
        typer.echo(f"! {warning}", err=True)
    if shared is not None:
        _print(_shared_documents(what, shared, changes, serving.key_secret), as_json=as_json)
        return
    if what == "command":
        typer.echo(_command(serving))
        return
    _print(_documents(what, serving, answer, one_machine=one_machine), as_json=as_json)


def _print(documents: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(documents if len(documents) > 1 else documents[0])
    else:
        from planner.plans.serving import as_yaml

        typer.echo(as_yaml(documents), nl=False)


def _shared(config: Path | None, name: str) -> "SharedServing | None":
    """Return the pools of this group of the configuration that share GPUs; None where no group is called so."""
    from gateway.configuration.settings import load, read_environment
    from planner.plans.launch import PORT
    from planner.plans.plan_errors import PlanRefused
    from planner.plans.render_shared import SharedServing, sleeping

    section = load(config, read_environment(), secrets_from=None).selfhosted
    group = next((each for each in section.shared_gpus if each.name == name), None)
    if group is None:
        other = section.shared_by(name)
        if other is not None:
            raise PlanRefused(f"`{name}` shares its GPUs: render all that stands there, with --pool {other.name}")
        return None
    pools = [sleeping(_configured(config, pool), PORT + index) for index, pool in enumerate(group.pools)]
    return SharedServing(name=group.name, level=group.level, pools=tuple(pools))


def _shared_documents(
    what: What, shared: "SharedServing", changes: dict[str, Any], key_secret: str | None
) -> list[dict[str, Any]]:
    import msgspec

    from planner.plans.plan_errors import PlanRefused
    from planner.plans.render_shared import shared_compose, shared_manifests

    if what not in ("k8s", "compose"):
        raise PlanRefused(
            "engines that share GPUs are rendered for Kubernetes and Compose, or started by `selfhosted run`"
        )
    given = {name: value for name, value in changes.items() if value is not None and not name.endswith("replicas")}
    pools = tuple(msgspec.structs.replace(each, **given, key_secret=key_secret) for each in shared.pools)
    shared = msgspec.structs.replace(shared, pools=pools)
    return shared_manifests(shared) if what == "k8s" else [shared_compose(shared)]


def _key_secret(found: "Serving", name: str | None) -> str | None:
    """Return the Secret with the engines' key; None where nobody wants one."""
    if name is None:
        return f"{found.name[:59]}-key"
    return name if name != "none" else None


def _place(found: "Serving", gpu: str | None, labels: list[str], *, spot: bool) -> "Place":
    """Return the placement of pods: on nodes with these labels, otherwise on those with that GPU, otherwise with the
    plan's.
    """
    from planner.plans.gpus import gpu_named
    from planner.plans.plan_errors import PlanRefused
    from planner.plans.serving import Place

    given = dict(found.place.labels) if gpu is None else {PRODUCT: gpu_named(gpu).product}
    if labels:
        pairs = [each.partition("=") for each in labels]
        if not all(equals for _, equals, _ in pairs):
            raise PlanRefused("--node-label is KEY=VALUE, such as nvidia.com/gpu.product=NVIDIA-L4")
        given = {key: value for key, _, value in pairs}
    return Place(labels=given, spot=spot)


def _documents(what: What, serving: "Serving", answer: "Plan | None", *, one_machine: bool) -> list[dict[str, Any]]:
    from planner.plans.plan_errors import PlanRefused
    from planner.plans.render_compose import compose
    from planner.plans.render_gateway import gateway_snippet
    from planner.plans.render_kubernetes import manifests
    from planner.plans.render_ray import ray_serve

    if what == "k8s":
        return manifests(serving)
    if what == "ray":
        return [ray_serve(serving)]
    if what == "compose":
        return [compose(serving)]
    if answer is None:
        raise PlanRefused("the configuration has the gateway's part already; render it from a plan: --plan plan.json")
    return [gateway_snippet(answer, serving, one_machine=one_machine)]


def _command(serving: "Serving") -> str:
    import shlex

    from planner.plans.launch import on_loopback

    words = [f"{name}={shlex.quote(value)}" for name, value in serving.environment.items()]
    return " ".join([*words, shlex.join(on_loopback(serving.command))])


def _read_plan(path: Path) -> "Plan":
    import msgspec

    from planner.plans.plan_errors import PlanRefused
    from planner.plans.planning import Plan

    if path.stat().st_size > _MOST_PLAN_BYTES:
        raise PlanRefused(f"{path} is larger than any plan")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PlanRefused(f"{path} is no plan as `weighbridge selfhosted plan --json` prints it: {error}") from None


def _planned(answer: "Plan", pool: str) -> "Serving":
    import msgspec

    from planner.plans.serving import Place, from_launch

    found = from_launch(answer.launch, pool, replicas=answer.replicas, spare=answer.spare)
    return msgspec.structs.replace(
        found,
        gpu_title=answer.gpu.title,
        weights_bytes=answer.memory.weight_bytes,
        running=None if answer.operation is None else answer.operation.running,
        place=Place(labels={PRODUCT: answer.gpu.product}),
    )


def _side_of(what: What, path: Path | None, whole: "Serving", part: str) -> "Serving":
    """Return the plan of prefill or decode, with all else as the whole plan has it. Raises PlanRefused."""
    import msgspec

    from planner.plans.plan_errors import PlanRefused
    from planner.plans.serving import of_side
    from planner.plans.split import Split

    class WithSplit(msgspec.Struct):
        split: Split | None = None

    if what not in ("k8s", "command"):
        raise PlanRefused("prefill and decode are rendered for Kubernetes and as commands")
    found = None if path is None else msgspec.json.decode(path.read_bytes(), type=WithSplit).split
    if found is None:
        raise PlanRefused("the plan has no sides: `weighbridge selfhosted plan … --split` tells why")
    side = of_side(found.prefill if part == "prefill" else found.decode, whole.pool, part)
    return msgspec.structs.replace(
        side, gpu_title=whole.gpu_title, weights_bytes=whole.weights_bytes, place=whole.place
    )


def _configured(config: Path | None, pool: str) -> "Serving":
    from gateway.configuration.settings import load, read_environment
    from planner.plans.plan_errors import PlanRefused
    from planner.plans.serving import from_config

    settings = load(config, read_environment(), secrets_from=None)
    found = next((each for each in settings.selfhosted.pools if each.name == pool), None)
    if found is None:
        names = ", ".join(each.name for each in settings.selfhosted.pools) or "none"
        raise PlanRefused(f"there is no pool `{pool}` under selfhosted.pools (there are: {names}); or give --plan")
    bill = next((each for each in settings.cost.pools if each.name == pool), None)
    return from_config(found, gpus=1 if bill is None else bill.gpus_per_replica)
