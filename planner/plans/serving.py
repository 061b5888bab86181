"""The description of a pool of engines for the renderers, from a plan or from the gateway's configuration.

Every name that ends up in a manifest is checked here, and manifests are data until PyYAML writes them: nothing that
somebody typed becomes syntax.
"""

import re
from ipaddress import ip_network
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

import msgspec
import yaml

from planner.plans.launch import PORT, SHUTDOWN_S, VLLM_VERSION, Launch
from planner.plans.plan_errors import PlanRefused
from planner.plans.split import Side
from selfhosted.config import PoolConfig

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_KEY: Final = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_GATED: Final = ("meta-llama/", "mistralai/", "google/gemma")
_POOL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_IMAGE: Final = re.compile(r"[a-z0-9][a-zA-Z0-9._/:@-]{0,254}")
_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST_LABEL: Final = 63
UNKNOWN_GIB: Final = 100
"""Room for weights whose size nobody knows."""
_RESOURCE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
EXCHANGE: Final = "weighbridge/exchange"
IMAGE: Final = f"vllm/vllm-openai:v{VLLM_VERSION}"


class _Guessing(msgspec.Struct):
    model: str | None = None


def _is_repository(name: str) -> bool:
    return not name.startswith(("/", "."))


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes on which pods may stand."""

    labels: dict[str, str] = {}
    """Labels that a node must have."""
    spot: bool = False
    """Nodes that the cloud takes back: batch work only, and a short drain."""
    taints: tuple[tuple[str, str | None], ...] = ()
    """Taints of theirs, beside the GPU's own, that pods tolerate: key and value, None for any."""


class Rdma(msgspec.Struct, frozen=True, kw_only=True):
    """The network devices over which pods of several nodes, or of prefill and decode, exchange without the CPU."""

    resource: str
    """Name at the cluster's device plugin, such as `rdma/hca_shared_devices_a`."""
    count: int = 1
    """Of one pod."""


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """The Gateway API's way to the engines, beside the gateway's."""

    picker: str
    """The endpoint picker's Service, in the engines' namespace."""
    gateway: str
    """The Gateway that the route belongs to."""
    gateway_namespace: str
    picker_port: int = 9_002


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of engines with all that any of the renderers needs."""

    pool: str
    """Name of the pool in the gateway's configuration."""
    name: str
    """Name in Kubernetes: lower case, no dots."""
    model: str
    """Model name that callers use."""
    repository: str | None
    command: tuple[str, ...]
    """The whole command line, program included."""
    environment: dict[str, str]
    gpus: int
    """GPUs of one replica, over all its nodes."""
    nodes: int = 1
    replicas: int
    min_replicas: int
    max_replicas: int
    port: int = PORT
    kv_events_port: int | None = None
    """Of the first data-parallel rank; those of the others follow, and then the ports of replays."""
    ranks: int = 1
    cold_start_s: float = 300.0
    drain_s: float = SHUTDOWN_S
    namespace: str = "default"
    image: str = IMAGE
    weights_claim: str | None = None
    """PersistentVolumeClaim that keeps the weights; each pod downloads them when not set."""
    weights_class: str | None = None
    """StorageClass of a volume for each pod, such as a node's own disk; an emptyDir when neither it nor a claim is set."""
    weights_bytes: int | None = None
    """Bytes that are downloaded; None where nobody knows."""
    quantises: bool = False
    """True where an engine makes weights narrower while it loads them, so that wider ones are downloaded."""
    pull_secret: str | None = None
    """Secret with which the image is pulled."""
    hub_cidrs: tuple[str, ...] = ()
    """Addresses that weights may be downloaded from; all public ones when neither these nor names are given."""
    hub_by_name: bool = False
    """True lets weights be downloaded from the hub's names alone, by Cilium's policy."""
    rdma: Rdma | None = None
    surge: bool = True
    """False where there are no spare GPUs for a new pod beside an old one."""
    inference: Inference | None = None
    token_secret: str | None = None
    """Secret whose key `token` lets the weights be downloaded."""
    key_secret: str | None = None
    """Secret whose key `api-key` engines ask for; None: engines answer whoever reaches them."""
    gateway_namespace: str | None = None
    """Namespace of the gateway's pods, which alone may reach the engines; None: the engines' own."""
    monitoring_namespace: str = "monitoring"
    """Namespace from which Prometheus may read the engines."""
    place: Place = Place()
    keep_replicas: bool = False
    """True leaves the number of replicas as it is in the cluster."""
    prometheus: str = "http://prometheus.monitoring:9090"
    gpu_title: str | None = None
    kv_offload_gib: int = 0
    """Main memory of a replica for KV blocks that left its GPUs."""
    exchange: str | None = None
    """Label that pods of prefill and decode have in common, as they hand each other KV caches; None where replicas do both."""
    reads: bool = False
    """True for pods that only read prompts for the other ones of their pool."""
    running: float | None = None
    """Requests that the plan has running in one replica; None where there is no plan."""

    @property
    def kv_ports(self) -> list[tuple[str, int]]:
        """Ports of KV events and of their replays, by name: one of each for every data-parallel rank, which has them so much above the
        first rank's.
        """
        first = self.kv_events_port
        if first is None:
            return []
        return [
            (name if not rank else f"{name}-{rank}", at + rank)
            for name, at in (("kv-events", first), ("kv-replay", first + self.ranks))
            for rank in range(self.ranks)
        ]

    @property
    def downloads(self) -> bool:
        """Whether weights come from a hub: a repository, and no folder of a volume."""
        return self.repository is not None and _is_repository(self.repository)

    @property
    def draft(self) -> str | None:
        """Repository of the model that guesses tokens, where there is one."""
        for flag, value in pairwise(self.command):
            if flag == "--speculative-config":
                found = msgspec.json.decode(value, type=_Guessing, strict=False).model
                return found if found is not None and _is_repository(found) else None
        return None

    @property
    def reaches_hub(self) -> bool:
        """Whether a pod may ask the hub. One with a claim finds its weights there, unless it is said from where they come."""
        return self.weights_claim is None or bool(self.hub_cidrs) or self.hub_by_name


def checked(serving: Serving) -> Serving:
    """Return the same value after checking it. Raises PlanRefused when it cannot be rendered."""
    _must(_POOL, serving.pool, "a pool's name is letters, digits and . _ -")
    for what, value in (
        ("the Deployment", serving.name),
        ("the namespace", serving.namespace),
        ("the PersistentVolumeClaim", serving.weights_claim),
        ("the Secret", serving.token_secret),
        ("the Secret", serving.key_secret),
        ("the StorageClass", serving.weights_class),
        ("the gateway's namespace", serving.gateway_namespace),
        ("Prometheus's namespace", serving.monitoring_namespace),
        ("the exchange", serving.exchange),
        ("the pull Secret", serving.pull_secret),
        *(
            ()
            if serving.inference is None
            else (
                ("the endpoint picker's Service", serving.inference.picker),
                ("the Gateway", serving.inference.gateway),
                ("the Gateway's namespace", serving.inference.gateway_namespace),
            )
        ),
    ):
        if value is not None:
            _must(_LABEL, value, f"the name of {what} is lower-case letters, digits and dashes, at most 63 of them")
    _must(_IMAGE, serving.image, "an image is a repository with a tag or a digest")
    _must(_ORIGIN, serving.prometheus, "Prometheus is found at http(s)://host[:port]")
    _checked_network(serving)
    for key, taint in serving.place.taints:
        _must(_LABEL_KEY, key, "a taint's key is a name, perhaps with a domain and / before it")
        if taint is not None:
            _must(_LABEL_VALUE, taint, "a taint's value is letters, digits and . _ -, at most 63 of them")
    for key, value in serving.place.labels.items():
        _must(_LABEL_KEY, key, "a node label's key is a name, perhaps with a domain and / before it")
        _must(_LABEL_VALUE, value, "a node label's value is letters, digits and . _ -, at most 63 of them")
    if serving.weights_claim is not None and serving.weights_class is not None:
        raise PlanRefused("weights lie on a claim or on a volume of each pod, not on both")
    for variable in serving.environment:
        _must(_VARIABLE, variable, "an environment variable is letters, digits and _")
    if not 0 <= serving.min_replicas <= serving.max_replicas:
        raise PlanRefused("the fewest replicas are more than the most")
    if serving.gpus < serving.nodes or not serving.command:
        raise PlanRefused("an engine needs a GPU and a command")
    return serving


def _checked_network(serving: Serving) -> None:
    if serving.hub_cidrs and serving.hub_by_name:
        raise PlanRefused("weights come from addresses or from names: --hub-cidr or --hub-by-name")
    for each in serving.hub_cidrs:
        try:
            ip_network(each)
        except ValueError:
            raise PlanRefused(f"`{each[:80]}` is no network; write --hub-cidr 203.0.113.0/24") from None
    if serving.rdma is None:
        return
    _must(_RESOURCE, serving.rdma.resource, "an RDMA resource is DOMAIN/NAME, as the cluster's device plugin has it")
    if serving.nodes == 1 and serving.exchange is None:
        raise PlanRefused(
            "RDMA is for replicas of several nodes, and for prefill and decode apart: this pool has neither"
        )


def _must(pattern: re.Pattern[str], value: str, rule: str) -> None:
    if pattern.fullmatch(value) is None:
        raise PlanRefused(f"{rule}; `{value[:80]}` is not")


def label_of(pool: str) -> str:
    """Return the pool's name as a Kubernetes label: lower case, dashes, at most 63 characters. A name that has to be changed for it
    gets a mark of its own, so that no two pools have one label.
    """
    label = re.sub(r"[^a-z0-9-]+", "-", pool.lower()).strip("-")[:_MOST_LABEL].strip("-")
    if label == pool or not label:
        return label
    return f"{label[: _MOST_LABEL - 9].strip('-')}-{crc32(pool.encode(errors='surrogatepass')):08x}"


def is_gated(serving: Serving) -> bool:
    """Return True for weights that the hub gives only to accounts that have accepted their licence."""
    return serving.repository is not None and serving.repository.startswith(_GATED)


def warnings_of(serving: Serving) -> list[str]:
    """Return warnings of what will not work as rendered, or is not as safe as it could be, for whoever renders it."""
    told = []
    if is_gated(serving) and serving.token_secret is None and serving.weights_claim is None:
        told.append(
            f"{serving.repository} is gated: its weights are downloaded only with a token of an account that has accepted its "
            "licence; name the Secret (Kubernetes: --token-secret) or set HF_TOKEN (Compose)"
        )
    if serving.key_secret is None:
        told.append(
            "engines ask for no key: whoever reaches them is answered; --key-secret names a Secret with `api-key`"
        )
    if not serving.place.labels:
        told.append("nothing says which GPU the nodes have: any will do; --gpu h100, or --node-label KEY=VALUE")
    if serving.exchange is not None:
        told.append(
            f"the gateway's pool has both sides, as `kubernetes: {{service: {serving.exchange}}}` and `prefill: {{replicas: "
            f'"{serving.exchange}-prefill-*", scale: {{…}}}}`, beside a `scale` of those that answer'
        )
        told.append("the image has to have NIXL")
    told += _warnings_of_rdma(serving)
    if "@sha256:" not in serving.image:
        told.append(
            f"{serving.image} is a tag, which its registry may point elsewhere tomorrow: --image {serving.image.rpartition(':')[0]}@sha256:…"
        )
    told += _warnings_of_weights(serving)
    if serving.inference is not None:
        told.append(
            "who comes by the HTTPRoute passes by the gateway: no keys of teams, limits, budgets or ledger, only the engines' own key"
        )
    if serving.place.spot and serving.min_replicas > 0:
        told.append("spot nodes can all be taken back at once: batch work only, and --min-replicas 0 is cheaper")
    return told


def _warnings_of_rdma(serving: Serving) -> list[str]:
    told = []
    if serving.rdma is None and (serving.nodes > 1 or serving.exchange is not None):
        told.append(
            "what pods exchange goes by TCP, slower than planned: --rdma names the resource of the cluster's RDMA device plugin, such as "
            "rdma/hca_shared_devices_a"
        )
    if serving.rdma is not None:
        told.append(
            "RDMA locks memory (IPC_LOCK), which only root may have here: the namespace has to allow it, "
            "pod-security.kubernetes.io/enforce=privileged. Pods have no other capability, and no network of the host's"
        )
    return told


def _warnings_of_weights(serving: Serving) -> list[str]:
    told = []
    if serving.weights_bytes is None and serving.weights_claim is None:
        told.append(
            f"how large the weights are is not known: room for {UNKNOWN_GIB} GiB is asked for; --weights-gib says more"
        )
    if not serving.downloads:
        return told
    if serving.weights_claim is None and not serving.hub_cidrs and not serving.hub_by_name:
        told.append(
            "weights come from any public address: --hub-by-name (Cilium), --hub-cidr, or a --weights-claim that is filled already"
        )
    if serving.quantises and serving.weights_bytes is not None:
        told.append(
            f"{serving.repository} is not in FP8: {serving.weights_bytes / 1e9:,.0f} GB are downloaded and made FP8 at each start; a "
            "checkpoint in FP8 is half of it (`plan --weights`)"
        )
    return told


def from_launch(
    launch: Launch, pool: str, *, replicas: int, max_replicas: int | None = None, spare: int = 0
) -> Serving:
    """Build the description from a plan's launch. Bounds follow from the planned peak: twice it at most, and never fewer
    than the spare replicas and one.
    """
    return Serving(
        pool=pool,
        name=label_of(pool),
        model=launch.served_name,
        repository=launch.repository,
        command=("vllm", "serve", *launch.arguments),
        environment=launch.environment,
        gpus=launch.gpus,
        replicas=replicas,
        nodes=launch.nodes,
        min_replicas=min(replicas, 1 + spare),
        max_replicas=max_replicas or 2 * replicas,
        port=launch.port,
        kv_events_port=_events_port(launch.arguments),
        ranks=launch.ranks,
        quantises=("--quantization", "fp8") in pairwise(launch.arguments),
        kv_offload_gib=_offload_gib(launch.arguments),
    )


def of_side(side: Side, pool: str, part: str) -> Serving:
    """Build the description of the replicas that read prompts, or of those that answer. Each side is scaled by itself."""
    found = from_launch(side.launch, f"{pool}-{part}", replicas=side.replicas)
    return msgspec.structs.replace(
        found, pool=pool, reads=part == "prefill", exchange=label_of(pool), running=side.operation.running
    )


def from_config(pool: PoolConfig, *, gpus: int) -> Serving:
    """Build the description from the gateway's configuration. Raises PlanRefused without a `launch` section."""
    if pool.launch is None:
        raise PlanRefused(
            f"pool `{pool.name}` has no `launch`, so nobody knows how an engine is started; "
            "add it, or render a plan: `weighbridge selfhosted plan … --json > plan.json`, then `render … --plan plan.json`"
        )
    filled = {"{port}": str(PORT), "{host}": "0.0.0.0", "{name}": "$(POD_NAME)"}  # noqa: S104 - in its own pod
    scale = pool.scale
    least, most = (1, 1) if scale is None else (scale.min_replicas, scale.max_replicas)
    return Serving(
        pool=pool.name,
        name=label_of(pool.name if pool.kubernetes is None else pool.kubernetes.service),
        model=pool.targets[0],
        repository=None,
        command=tuple(_filled(word, filled) for word in pool.launch.command),
        environment=pool.launch.environment,
        gpus=gpus,
        replicas=max(1, least),
        min_replicas=least,
        max_replicas=most,
        kv_events_port=_port_of(pool.watch.kv_events_port),
        ranks=pool.data_parallel_ranks,
        cold_start_s=300.0 if scale is None else scale.cold_start_s,
        drain_s=pool.launch.drain_s,
        namespace="default" if pool.kubernetes is None else pool.kubernetes.namespace or "default",
    )


def _filled(word: str, filled: dict[str, str]) -> str:
    # Any other `$(...)` is literal text, which Kubernetes would expand unless it is escaped.
    word = word.replace("$(", "$$(")
    for name, value in filled.items():
        word = word.replace(name, value)
    return word


def _port_of(configured: int | str | None) -> int | None:
    """Return a port number, also from an offset such as `+1000` to the engine's own port."""
    return PORT + int(configured) if isinstance(configured, str) else configured


def _events_port(arguments: tuple[str, ...]) -> int | None:
    for flag, value in pairwise(arguments):
        if flag == "--kv-events-config":
            found = re.search(r'"endpoint":"tcp://\*:(\d{1,5})"', value)
            return None if found is None else int(found[1])
    return None


def _offload_gib(arguments: tuple[str, ...]) -> int:
    return next((int(value) for flag, value in pairwise(arguments) if flag == "--kv-offloading-size"), 0)


def as_yaml(documents: list[dict[str, Any]]) -> str:
    """Return the YAML with one document for each manifest. PyYAML quotes whatever would read as something else."""
    return yaml.safe_dump_all(
        documents, sort_keys=False, explicit_start=len(documents) > 1, allow_unicode=True, width=120
    )
