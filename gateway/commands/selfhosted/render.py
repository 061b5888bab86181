"""`weighbridge selfhosted render`: a planned or configured pool as Kubernetes, Ray, Compose or a shell takes it."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.commands.shared import print_json

if TYPE_CHECKING:
    from selfhosted.offline.plans.planning import Plan
    from selfhosted.offline.plans.serving import Serving

_MOST_PLAN_BYTES = 4_000_000

What = Literal["k8s", "ray", "compose", "command", "gateway"]


def render(
    what: Annotated[
        What, typer.Argument(metavar="WHAT", help="k8s, ray, compose, command, or gateway for the gateway's own part.")
    ],
    *,
    pool: Annotated[str, typer.Option(help="The pool's name.")],
    plan: Annotated[
        Path | None,
        typer.Option(help="What `weighbridge selfhosted plan --json` printed; otherwise the configuration."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The configuration file; otherwise WEIGHBRIDGE_CONFIG.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=1, max=10_000, help="Instead of the plan's.")] = None,
    min_replicas: Annotated[int | None, typer.Option(min=0, max=10_000, help="Never fewer.")] = None,
    max_replicas: Annotated[int | None, typer.Option(min=1, max=10_000, help="Never more.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Kubernetes: the namespace.")] = None,
    image: Annotated[str | None, typer.Option(help="Instead of vLLM's own image of the planned version.")] = None,
    weights_claim: Annotated[
        str | None, typer.Option(help="Kubernetes: the PersistentVolumeClaim that keeps the weights.")
    ] = None,
    token_secret: Annotated[
        str | None, typer.Option(help="Kubernetes: the Secret whose key `token` lets weights be downloaded.")
    ] = None,
    prometheus: Annotated[str | None, typer.Option(help="Kubernetes: where KEDA asks Prometheus.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Write the files that start a pool, and what the gateway must know of it."""
    import msgspec

    from selfhosted.offline.plans.serving import checked

    answer = None if plan is None else _read_plan(plan)
    found = _configured(config, pool) if answer is None else _planned(answer, pool)
    changes: dict[str, Any] = {
        "replicas": replicas,
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "namespace": namespace,
        "image": image,
        "weights_claim": weights_claim,
        "token_secret": token_secret,
        "prometheus": prometheus,
    }
    if replicas is not None and max_replicas is None:
        changes["max_replicas"] = max(replicas, found.max_replicas)
    serving = checked(
        msgspec.structs.replace(found, **{name: value for name, value in changes.items() if value is not None})
    )
    if what == "command":
        typer.echo(_command(serving))
        return
    documents = _documents(what, serving, answer)
    if as_json:
        print_json(documents if len(documents) > 1 else documents[0])
    else:
        from selfhosted.offline.plans.serving import as_yaml

        typer.echo(as_yaml(documents), nl=False)


def _documents(what: What, serving: "Serving", answer: "Plan | None") -> list[dict[str, Any]]:
    from selfhosted.offline.plans.plan_errors import PlanRefused
    from selfhosted.offline.plans.render_compose import compose
    from selfhosted.offline.plans.render_gateway import gateway_snippet
    from selfhosted.offline.plans.render_kubernetes import manifests
    from selfhosted.offline.plans.render_ray import ray_serve

    if what == "k8s":
        return manifests(serving)
    if what == "ray":
        return [ray_serve(serving)]
    if what == "compose":
        return [compose(serving)]
    if answer is None:
        raise PlanRefused("the configuration has the gateway's part already; render it from a plan: --plan plan.json")
    return [gateway_snippet(answer, serving)]


def _command(serving: "Serving") -> str:
    import shlex

    words = [f"{name}={shlex.quote(value)}" for name, value in serving.environment.items()]
    return " ".join([*words, shlex.join(serving.command)])


def _read_plan(path: Path) -> "Plan":
    import msgspec

    from selfhosted.offline.plans.plan_errors import PlanRefused
    from selfhosted.offline.plans.planning import Plan

    if path.stat().st_size > _MOST_PLAN_BYTES:
        raise PlanRefused(f"{path} is larger than any plan")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PlanRefused(f"{path} is no plan as `weighbridge selfhosted plan --json` prints it: {error}") from None


def _planned(answer: "Plan", pool: str) -> "Serving":
    import msgspec

    from selfhosted.offline.plans.serving import from_launch

    found = from_launch(answer.launch, pool, replicas=answer.replicas)
    return msgspec.structs.replace(found, gpu_title=answer.gpu.title)


def _configured(config: Path | None, pool: str) -> "Serving":
    from gateway.configuration.settings import load, read_environment
    from selfhosted.offline.plans.plan_errors import PlanRefused
    from selfhosted.offline.plans.serving import from_config

    settings = load(config, read_environment(), secrets_from=None)
    found = next((each for each in settings.selfhosted.pools if each.name == pool), None)
    if found is None:
        names = ", ".join(each.name for each in settings.selfhosted.pools) or "none"
        raise PlanRefused(f"there is no pool `{pool}` under selfhosted.pools (there are: {names}); or give --plan")
    bill = next((each for each in settings.cost.pools if each.name == pool), None)
    return from_config(found, gpus=1 if bill is None else bill.gpus_per_replica)
