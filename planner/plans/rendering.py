"""What is rendered of a plan or a configured pool: its serving, and the documents of each platform."""

import shlex
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from cost.config import CostSection
from planner.plans.gpus import NVIDIA, gpu_named
from planner.plans.launch import PORT, on_loopback
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan
from planner.plans.render_compose import compose
from planner.plans.render_gateway import gateway_snippet
from planner.plans.render_kubernetes import manifests
from planner.plans.render_ray import ray_serve
from planner.plans.render_shared import SharedServing, shared_compose, shared_manifests, sleeping
from planner.plans.serving import Inference, Place, Rdma, Serving, from_config, from_launch, of_side
from planner.plans.split import Split
from selfhosted.config import SelfhostedSection
from settings.decoding import DECODE_ERRORS

_MOST_PLAN_BYTES: Final = 4_000_000
_MOST_DEVICES: Final = 64
_MOST_PORT: Final = 65_535
_PRODUCT: Final = "nvidia.com/gpu.product"
What = Literal["k8s", "ray", "compose", "command", "gateway"]


class _WithSplit(msgspec.Struct):
    split: Split | None = None


def read_plan(path: Path) -> Plan:
    """Read what `weighbridge selfhosted plan --json` printed. Raises PlanRefused."""
    if path.stat().st_size > _MOST_PLAN_BYTES:
        raise PlanRefused(f"{path} is larger than any plan")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except DECODE_ERRORS as error:
        raise PlanRefused(f"{path} is no plan as `weighbridge selfhosted plan --json` prints it: {error}") from None


def serving_of_plan(answer: Plan, pool: str) -> Serving:
    """Return a plan as what serves the pool. Raises PlanRefused where its weights would not be of the planned precision."""
    published = answer.model.quantised or "fp8"
    if answer.precision not in ("bf16", published) and answer.launch.repository == answer.model.repository:
        raise PlanRefused(
            f"the plan is for {answer.precision.upper()}, and {answer.launch.repository} is not: its weights would not fit. Plan with "
            "--weights, a checkpoint of that precision"
        )
    found = from_launch(answer.launch, pool, replicas=answer.replicas, spare=answer.spare)
    return msgspec.structs.replace(
        found,
        gpu_title=answer.gpu.title,
        # What is made FP8 while it is loaded is downloaded as it was published.
        weights_bytes=answer.model.weight_bytes("bf16") if found.quantises else answer.memory.weight_bytes,
        running=None if answer.operation is None else answer.operation.running,
        place=Place(labels={_PRODUCT: answer.gpu.product}),
    )


def configured_serving(selfhosted: SelfhostedSection, cost: CostSection, name: str) -> Serving:
    """Return a configured pool as what serves it. Raises PlanRefused for an unknown one."""
    found = next((each for each in selfhosted.pools if each.name == name), None)
    if found is None:
        names = ", ".join(each.name for each in selfhosted.pools) or "none"
        raise PlanRefused(f"there is no pool `{name}` under selfhosted.pools (there are: {names}); or give --plan")
    bill = next((each for each in cost.pools if each.name == name), None)
    return from_config(found, gpus=1 if bill is None else bill.gpus_per_replica)


def shared_serving(selfhosted: SelfhostedSection, cost: CostSection, name: str) -> SharedServing | None:
    """Return the configured pools that share the GPUs of this name; None where no group is called so. Raises PlanRefused for a
    pool of a group.
    """
    group = next((each for each in selfhosted.shared_gpus if each.name == name), None)
    if group is None:
        other = selfhosted.shared_by(name)
        if other is not None:
            raise PlanRefused(f"`{name}` shares its GPUs: render all that stands there, with --pool {other.name}")
        return None
    pools = [
        sleeping(configured_serving(selfhosted, cost, pool), PORT + index) for index, pool in enumerate(group.pools)
    ]
    return SharedServing(name=group.name, level=group.level, pools=tuple(pools))


def side_of(what: What, path: Path | None, whole: Serving, part: str) -> Serving:
    """Return prefill or decode, with all else as the whole plan has it. Raises PlanRefused."""
    if what not in ("k8s", "command"):
        raise PlanRefused("prefill and decode are rendered for Kubernetes and as commands")
    found = None if path is None else msgspec.json.decode(path.read_bytes(), type=_WithSplit).split
    if found is None:
        raise PlanRefused("the plan has no sides: `weighbridge selfhosted plan … --split` tells why")
    side = of_side(found.prefill if part == "prefill" else found.decode, whole.pool, part)
    return msgspec.structs.replace(
        side, gpu_title=whole.gpu_title, weights_bytes=whole.weights_bytes, place=whole.place
    )


def place_of(found: Serving, gpu: str | None, labels: list[str], taints: list[str], *, spot: bool) -> Place:
    """Return where pods may stand: on nodes with these labels, otherwise on those with that GPU, otherwise with the plan's."""
    given = dict(found.place.labels) if gpu is None else {_PRODUCT: gpu_named(gpu).product}
    if labels:
        pairs = _pairs(labels)
        if not all(equals for _, equals, _ in pairs):
            raise PlanRefused("--node-label is KEY=VALUE, such as nvidia.com/gpu.product=NVIDIA-L4")
        given = {key: value for key, _, value in pairs}
    return Place(labels=given, spot=spot, taints=tuple((key, value or None) for key, _, value in _pairs(taints)))


def _pairs(texts: list[str]) -> list[tuple[str, str, str]]:
    return [each.partition("=") for each in texts]


def rdma_of(text: str) -> Rdma:
    """Parse NAME or NAME=COUNT. Raises PlanRefused."""
    name, equals, count = text.partition("=")
    if equals and not (count.isascii() and count.isdigit() and 1 <= int(count[:3]) <= _MOST_DEVICES):
        raise PlanRefused(
            f"--rdma is NAME or NAME=COUNT, 1 to {_MOST_DEVICES} devices a pod, such as rdma/hca_shared_devices_a=1"
        )
    return Rdma(resource=name, count=int(count[:3]) if equals else 1)


def inference_of(picker: str, route: str | None) -> Inference:
    """Parse the picker's Service, perhaps with a port, and the Gateway as NAMESPACE/NAME. Raises PlanRefused."""
    namespace, slash, gateway = (route or "").partition("/")
    if not slash or not gateway:
        raise PlanRefused("--inference-pool needs --http-route NAMESPACE/NAME, the Gateway that requests come in by")
    name, colon, port = picker.partition(":")
    if colon and not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= _MOST_PORT):
        raise PlanRefused("--inference-pool is the endpoint picker's Service, SERVICE or SERVICE:PORT")
    found = Inference(picker=name, gateway=gateway, gateway_namespace=namespace)
    return msgspec.structs.replace(found, picker_port=int(port)) if colon else found


def documents_of(what: What, serving: Serving, answer: Plan | None, *, one_machine: bool) -> list[dict[str, Any]]:
    """Return the documents for one platform; `gateway` needs the plan. Raises PlanRefused."""
    if answer is not None and answer.gpu.device != NVIDIA and what != "gateway":
        raise PlanRefused(f"manifests are written for NVIDIA's GPUs only; {answer.gpu.title}: take --what command")
    if what == "k8s":
        return manifests(serving)
    if what == "ray":
        return [ray_serve(serving)]
    if what == "compose":
        return [compose(serving)]
    if answer is None:
        raise PlanRefused("the configuration has the gateway's part already; render it from a plan: --plan plan.json")
    return [gateway_snippet(answer, serving, one_machine=one_machine)]


def shared_documents(
    what: What, shared: SharedServing, changes: dict[str, Any], key_secret: str | None
) -> list[dict[str, Any]]:
    """Return the documents of pools that share GPUs, each with the changes but those of its replicas. Raises PlanRefused."""
    if what not in ("k8s", "compose"):
        raise PlanRefused(
            "engines that share GPUs are rendered for Kubernetes and Compose, or started by `selfhosted run`"
        )
    given = {name: value for name, value in changes.items() if value is not None and not name.endswith("replicas")}
    pools = tuple(msgspec.structs.replace(each, **given, key_secret=key_secret) for each in shared.pools)
    shared = msgspec.structs.replace(shared, pools=pools)
    return shared_manifests(shared) if what == "k8s" else [shared_compose(shared)]


def command_line(serving: Serving) -> str:
    """Return the shell's line that starts one engine, on the loopback address."""
    words = [f"{name}={shlex.quote(value)}" for name, value in serving.environment.items()]
    return " ".join([*words, shlex.join(on_loopback(serving.command))])
