"""`weighbridge selfhosted render`: a planned or configured pool as Kubernetes, Ray, Compose or a shell takes it."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.commands.shared import print_json, read_config

if TYPE_CHECKING:
    from planner.plans.serving import Serving


def render(
    what: Annotated[
        Literal["k8s", "ray", "compose", "command", "gateway"],
        typer.Argument(metavar="WHAT", help="k8s, ray, compose, command, or gateway for the gateway's own part."),
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
    image: Annotated[
        str | None,
        typer.Option(help="Instead of vLLM's own image of the planned version; best by digest, NAME@sha256:…"),
    ] = None,
    pull_secret: Annotated[str | None, typer.Option(help="Kubernetes: the Secret to pull it with.")] = None,
    weights_claim: Annotated[
        str | None, typer.Option(help="Kubernetes: the PersistentVolumeClaim that keeps the weights.")
    ] = None,
    weights_class: Annotated[
        str | None,
        typer.Option(help="Kubernetes: a StorageClass, such as a node's own disk, for a volume of each pod."),
    ] = None,
    weights_gib: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Kubernetes: how large the weights are, in GiB; otherwise the plan's."),
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
    tolerate: Annotated[
        list[str] | None,
        typer.Option(help="Kubernetes: KEY or KEY=VALUE, a taint of those nodes beside the GPU's. Again for more."),
    ] = None,
    rdma: Annotated[
        str | None,
        typer.Option(
            help="Kubernetes, several nodes a replica or --part: RESOURCE or RESOURCE=COUNT of the RDMA device plugin."
        ),
    ] = None,
    hub_cidr: Annotated[
        list[str] | None,
        typer.Option(
            help="Kubernetes: weights are downloaded from these networks alone, such as a mirror's. Again for more."
        ),
    ] = None,
    hub_by_name: Annotated[
        bool, typer.Option("--hub-by-name", help="Kubernetes with Cilium: from Hugging Face's names alone.")
    ] = False,
    inference_pool: Annotated[
        str | None,
        typer.Option(
            metavar="SERVICE[:PORT]",
            help="Kubernetes: an InferencePool, too, with this endpoint picker; --http-route beside it.",
        ),
    ] = None,
    http_route: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE/NAME", help="Kubernetes: the Gateway whose HTTPRoute leads to that pool."),
    ] = None,
    no_surge: Annotated[
        bool,
        typer.Option(
            "--no-surge", help="Kubernetes: a rollout ends an old pod before the new one: there are no spare GPUs."
        ),
    ] = False,
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

    from planner.plans import rendering
    from planner.plans.serving import checked, warnings_of

    if plan is not None:
        answer, shared = rendering.read_plan(plan), None
        found = rendering.serving_of_plan(answer, pool)
    else:
        settings, answer = read_config(config), None
        shared = rendering.shared_serving(settings.selfhosted, settings.cost, pool)
        found = (
            rendering.configured_serving(settings.selfhosted, settings.cost, pool)
            if shared is None
            else shared.pools[0]
        )
    if part is not None:
        found = rendering.side_of(what, plan, found, part)
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
        "place": rendering.place_of(found, gpu, node_label or [], tolerate or [], spot=spot),
        "pull_secret": pull_secret,
        "weights_bytes": None if weights_gib is None else weights_gib * 2**30,
        "rdma": None if rdma is None else rendering.rdma_of(rdma),
        "hub_cidrs": tuple(hub_cidr or ()),
        "hub_by_name": hub_by_name,
        "surge": not no_surge,
        "inference": None if inference_pool is None else rendering.inference_of(inference_pool, http_route),
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
        _print(rendering.shared_documents(what, shared, changes, serving.key_secret), as_json=as_json)
        return
    if what == "command":
        typer.echo(rendering.command_line(serving))
        return
    _print(rendering.documents_of(what, serving, answer, one_machine=one_machine), as_json=as_json)


def _key_secret(found: "Serving", name: str | None) -> str | None:
    """Return the Secret with the engines' key; None where nobody wants one."""
    if name is None:
        return f"{found.name[:59]}-key"
    return name if name != "none" else None


def _print(documents: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(documents if len(documents) > 1 else documents[0])
    else:
        from planner.plans.serving import as_yaml

        typer.echo(as_yaml(documents), nl=False)
