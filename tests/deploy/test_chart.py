"""The chart over a matrix of values: what Kubernetes takes, what belongs together, and what strangers filed against other charts."""

import json
import re
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from gateway.configuration.gateway_config import ServerConfig
from planner.plans.render_kubernetes import manifests
from planner.plans.serving import as_yaml
from tests.deploy.chart import (
    CHART,
    HERE,
    MATRIX,
    NAMESPACE,
    Manifest,
    bytes_of,
    configuration,
    find,
    helm,
    kinds,
    laid_over,
    needs_helm,
    of,
    pods,
    rendered,
    values_of,
    workloads,
)
from tests.deploy.test_values import emptied
from tests.kinds.published import needs_kinds, refused_by_published_schemas
from tests.planner.plans.test_serving import planned

pytestmark = needs_helm

every = pytest.mark.parametrize("name", list(MATRIX))
_VERSIONS: Final = ("1.28", "1.33", "1.37")
_PUBLISHED: Final = ("ScaledObject", "ServiceMonitor", "PrometheusRule", "HTTPRoute", "Gateway")
_ENVOYS: Final = ("ClientTrafficPolicy", "BackendTrafficPolicy", "EnvoyExtensionPolicy")
_ROLES: Final = ("gateway", "control-plane", "batch")
# What a process takes idle, as measured, and what the supervisor and the control plane take beside the workers.
_WORKER_BYTES: Final = 131_000_000
_OTHERS_BYTES: Final = 107_000_000 + 166_000_000


@every
def test_helm_finds_nothing_to_say(name: str) -> None:
    """`lint --strict` of the chart with these values."""
    done = helm("lint", "--strict", values=values_of(name))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", _VERSIONS)
@every
def test_kubernetes_own_schemas_take_every_object(name: str, version: str) -> None:
    """Strictly, by the oldest version that the chart names and the newest."""
    checked = [each for each in of(name) if each["kind"] not in (*_PUBLISHED, *_ENVOYS)]
    assert len(checked) > 5
    for each in checked:
        kubernetes_validate.validate(each, version, strict=True)


@needs_kinds
def test_published_schemas_take_the_custom_resources() -> None:
    """Those of KEDA, the Prometheus operator and the Gateway API."""
    custom = [each for name in MATRIX for each in kinds(of(name), *_PUBLISHED)]
    assert {each["kind"] for each in custom} == set(_PUBLISHED)
    assert refused_by_published_schemas(custom) is None


@pytest.mark.parametrize("case", yaml.safe_load((HERE / "refusals.yaml").read_text()), ids=lambda case: case["says"])
def test_wrong_values_are_refused_in_words(case: dict[str, Any]) -> None:
    """The key and what is wrong with it, or what to set: before anything reaches a cluster."""
    done = helm("template", values=laid_over(MATRIX["defaults"], case["values"]))
    assert done.returncode != 0
    assert case["says"] in done.stderr
    assert "nil pointer" not in done.stderr


@pytest.mark.parametrize("name", ["defaults", "planes apart", "batch apart", "keda", "route", "edge"])
def test_what_may_be_empty_may_be_empty(name: str) -> None:
    """Lists and free maps whose lines are all comments."""
    assert len(rendered(laid_over(emptied(), values_of(name)))) > 5


@every
def test_pods_satisfy_the_restricted_standard(name: str) -> None:
    """Each rule of it for every pod, with a root that is read-only, and no token of the cluster."""
    any_user = name == "an arbitrary user"
    volumes = {
        "configMap",
        "secret",
        "emptyDir",
        "persistentVolumeClaim",
        "projected",
        "csi",
        "ephemeral",
        "downwardAPI",
    }
    for pod in pods(name):
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == (None if any_user else 65532)
        assert all(set(each) - {"name"} <= volumes for each in spec["volumes"])
        for container in spec["containers"]:
            context = container["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not any("hostPort" in port for port in container.get("ports", []))


@every
def test_each_place_that_is_written_is_a_volume(name: str) -> None:
    """LiteLLM's images did not start on a read-only root for two years (#4915, #10624, #13369)."""
    for workload in workloads(name):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
        environment = {each["name"]: each.get("value") for each in container["env"]}
        assert writable - {"/var/lib/weighbridge-files"} == {"/tmp", environment["WEIGHBRIDGE_DATA_DIR"]}  # noqa: S108
        made = {each["name"] for each in workload["spec"]["template"]["spec"]["volumes"]}
        made |= {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])}
        assert {each["name"] for each in container["volumeMounts"]} == made


@every
def test_the_migration_needs_nothing_of_the_release(name: str) -> None:
    """It runs before the first install's objects are there; LiteLLM's waited for an account that came later (#20571)."""
    for job in kinds(of(name), "Job"):
        spec = job["spec"]["template"]["spec"]
        ours = {each["metadata"]["name"] for each in kinds(of(name), "ConfigMap", "ServiceAccount", "Secret")}
        assert spec.get("serviceAccountName") in {None, values_of(name).get("migration", {}).get("serviceAccountName")}
        assert not ours & set(re.findall(r"[a-z0-9-]+", json.dumps(spec)))


def test_the_migration_goes_first_with_helm_and_with_argo() -> None:
    """Each reads its own annotations; of Helm's hooks Argo CD knows these two (openfga #107). A job that is there is deleted before
    the next, for jobs cannot be changed (Kong #763) and have to run anew (LiteLLM #7536).
    """
    annotations = find("defaults", "Job", "-migrate")["metadata"]["annotations"]
    assert annotations == {
        "helm.sh/hook": "pre-install,pre-upgrade",
        "helm.sh/hook-weight": "-5",
        "helm.sh/hook-delete-policy": "before-hook-creation",
        "argocd.argoproj.io/hook": "PreSync",
        "argocd.argoproj.io/hook-delete-policy": "BeforeHookCreation",
    }
    changed = find("own annotations", "Job", "-migrate")
    # LiteLLM #26875: the database may come in a later phase of the same sync.
    assert annotations | MATRIX["own annotations"]["migration"]["annotations"] == changed["metadata"]["annotations"]
    assert changed["spec"]["template"]["spec"]["serviceAccountName"] == "iam"
    without = laid_over(MATRIX["defaults"], {"migration": {"annotations": dict.fromkeys(annotations, "")}})
    (bare,) = kinds(rendered(without), "Job")
    assert "annotations" not in bare["metadata"]


def test_a_plain_job_is_another_for_another_image() -> None:
    """Where nobody reads hooks (LiteLLM #36381); its pods start again until it is done, and it is cleared away."""
    names = set()
    for image in ({}, {"tag": "0.2.0"}):
        values = laid_over(values_of("plain job"), {"image": image})
        (job,) = kinds(rendered(values), "Job")
        assert "annotations" not in job["metadata"]
        assert job["spec"]["ttlSecondsAfterFinished"] > 0
        names.add(job["metadata"]["name"])
    assert len(names) == 2


@every
def test_a_failed_migration_is_a_failed_job(name: str) -> None:
    """LiteLLM's did not wait for the database, and was Completed when it failed (#16190). Pods change no schema themselves then."""
    jobs = kinds(of(name), "Job")
    for job in jobs:
        spec = job["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["args"] == ["migrate", "--wait-s", "120"]
        assert "command" not in container
        assert (spec["restartPolicy"], job["spec"]["backoffLimit"]) == ("Never", 3)
        assert job["spec"]["activeDeadlineSeconds"] > 120
    local = name == "tried in one pod"
    assert len(jobs) == (0 if local or name == "no job" else 1)
    for workload in workloads(name):
        assert _variables(workload).get("WEIGHBRIDGE_MIGRATE") == (None if local else "false" if jobs else "true")


@every
def test_nobody_sets_the_number_of_pods_twice(name: str) -> None:
    """With a scaler there are no `replicas`, which Argo CD would set back at each sync (formbricks #7916, bitnami #22743)."""
    scalers = kinds(of(name), "HorizontalPodAutoscaler", "ScaledObject")
    for workload in workloads(name):
        identity = {"apiVersion": "apps/v1", "kind": workload["kind"], "name": workload["metadata"]["name"]}
        scaled = [each for each in scalers if each["spec"]["scaleTargetRef"] == identity]
        assert ("replicas" in workload["spec"]) is not bool(scaled)
    assert len(scalers) == (1 if name.startswith(("hpa", "keda")) else 0)


def test_scalers_ask_for_what_is_exported() -> None:
    """By its name, of these pods alone, by the labels that the ServiceMonitor's scrape adds."""
    exported = (CHART.parents[2] / "docs" / "observability.md").read_text()
    hpa = find("hpa", "HorizontalPodAutoscaler", "-gateway")["spec"]
    assert [each["type"] for each in hpa["metrics"]] == ["Resource", "Pods"]
    asked = hpa["metrics"][1]["pods"]["metric"]["name"]
    (trigger,) = find("keda", "ScaledObject", "-gateway")["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    service = find("keda", "Service", "-gateway-pods")["metadata"]["name"]
    assert query == f'sum({asked}{{namespace="{NAMESPACE}",service="{service}"}})'
    assert f"`{asked}`" in exported
    (alone,) = find("hpa by processors alone", "HorizontalPodAutoscaler", "-gateway")["spec"]["metrics"]
    assert alone["resource"]["name"] == "cpu"


@every
def test_memory_is_what_was_measured(name: str) -> None:
    """The limit holds every process idle and each worker's bodies and answers at their bounds; vLLM's router was killed at its
    default (production-stack #858).
    """
    server = ServerConfig()
    for workload in workloads(name):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        workers = configuration(name, workload["metadata"]["labels"]["app.kubernetes.io/component"])["server"][
            "workers"
        ]
        idle = _OTHERS_BYTES + workers * _WORKER_BYTES
        most = idle + workers * (server.max_bodies_bytes + server.max_replies_bytes)
        resources = container["resources"]
        assert bytes_of(resources["requests"]["memory"]) > 1.25 * idle
        assert bytes_of(resources["limits"]["memory"]) > most
        assert "cpu" not in resources["limits"]


@every
def test_no_secret_is_made_or_shown(name: str) -> None:
    """They come from outside, each by name and key (Bifrost PR 3755), and none is in a ConfigMap."""
    assert kinds(of(name), "Secret") == []
    for workload in workloads(name):
        variables = workload["spec"]["template"]["spec"]["containers"][0]["env"]
        secret = {each["name"] for each in variables if "secretKeyRef" in each.get("valueFrom", {})}
        wanted = {"WEIGHBRIDGE_PEPPER", "WEIGHBRIDGE_DATABASE_URL"} if name != "tried in one pod" else set()
        assert wanted <= secret
        role = workload["metadata"]["labels"]["app.kubernetes.io/component"]
        written = configuration(name, role)
        # Unless something names the pepper `serve` does not start.
        assert ("WEIGHBRIDGE_PEPPER" in secret) is not ("pepper_file" in written.get("accounts", {}))
        assert ("METRICS_TOKEN" in secret) is ("metrics_token" in written.get("telemetry", {}))


@every
def test_no_service_puts_words_into_the_environment(name: str) -> None:
    """A Service called `weighbridge` would give pods WEIGHBRIDGE_PORT=tcp://…, and a start that fails by it."""
    assert all(pod["spec"]["enableServiceLinks"] is False for pod in pods(name))


@every
def test_the_environment_and_the_file_say_the_same(name: str) -> None:
    """Of where to listen: the environment goes before the file, and the image has an address in it, too."""
    for workload in workloads(name):
        server = configuration(name, workload["metadata"]["labels"]["app.kubernetes.io/component"])["server"]
        variables = _variables(workload)
        assert variables["WEIGHBRIDGE_HOST"] == server["host"]
        assert variables["WEIGHBRIDGE_PORT"] == str(server["port"])
        (port,) = workload["spec"]["template"]["spec"]["containers"][0]["ports"]
        assert port["containerPort"] == server["port"]


@every
def test_a_pod_has_the_time_to_end(name: str) -> None:
    """What it goes on serving, what streams may take, and what books need (docs/gate.md)."""
    for workload in workloads(name):
        spec = workload["spec"]["template"]["spec"]
        server = configuration(name, workload["metadata"]["labels"]["app.kubernetes.io/component"])["server"]
        (_, pause) = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert spec["terminationGracePeriodSeconds"] >= int(pause) + server["drain_s"] + 25


@every
def test_probes_ask_what_they_are_for(name: str) -> None:
    """Only readiness has to do with databases and load; pages and batches need a database that takes writes."""
    for workload in workloads(name):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        role = workload["metadata"]["labels"]["app.kubernetes.io/component"]
        scheme = "HTTPS" if name == "extra authority" else "HTTP"
        asked = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
        assert {each["port"] for each in asked.values()} == {"http"}
        assert {each["scheme"] for each in asked.values()} == {scheme}
        assert {kind: each["path"] for kind, each in asked.items()} == {
            "startup": "/healthz",
            "liveness": "/healthz",
            "readiness": "/readyz" if role == "gateway" else "/readyz/control-plane",
        }
        # A worker that is late for a moment is no reason to end its streams.
        live = container["livenessProbe"]
        assert live["periodSeconds"] * live["failureThreshold"] >= 60


@every
def test_a_rollout_takes_no_capacity_or_no_books(name: str) -> None:
    """Without volumes the new pod comes first. With them each pod has its own, which waits for its successor."""
    for workload in workloads(name):
        spec = workload["spec"]
        if workload["kind"] == "Deployment":
            assert name in {"no persistence", "hpa by processors alone"}
            assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
            (data,) = [each for each in spec["template"]["spec"]["volumes"] if each["name"] == "data"]
            assert "emptyDir" in data
        else:
            assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
            assert spec["podManagementPolicy"] == "Parallel"
            (claim,) = spec["volumeClaimTemplates"]
            assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
        (budget,) = [
            each
            for each in kinds(of(name), "PodDisruptionBudget")
            if each["spec"]["selector"] == workload["spec"]["selector"]
        ]
        assert (budget["spec"]["maxUnavailable"], budget["spec"]["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


@every
def test_selectors_find_their_pods(name: str) -> None:
    """Each exactly one kind of pods, and the job's none but the network policy's; engines let all of them in by their name."""
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in workloads(name)}
    for service in kinds(of(name), "Service"):
        found = [each for each, has in labels.items() if service["spec"]["selector"].items() <= has.items()]
        assert len(found) == 1
    for workload in workloads(name):
        chosen = workload["spec"]["selector"]["matchLabels"].items()
        assert [each for each, has in labels.items() if chosen <= has.items()] == [workload["metadata"]["name"]]
        if workload["kind"] == "StatefulSet":
            assert find(name, "Service", f"{workload['metadata']['name']}-pods")["spec"]["clusterIP"] == "None"
    for policy in kinds(of(name), "NetworkPolicy"):
        chosen = policy["spec"]["podSelector"]["matchLabels"].items()
        assert all(chosen <= pod["metadata"]["labels"].items() for pod in pods(name))
    for monitor in kinds(of(name), "ServiceMonitor"):
        scraped = monitor["spec"]["selector"]["matchLabels"].items()
        services = [each for each in kinds(of(name), "Service") if scraped <= each["metadata"]["labels"].items()]
        assert len(services) == len(labels)
    assert all(each["app.kubernetes.io/name"] == "weighbridge" for each in labels.values())


@every
def test_two_renderings_are_one(name: str) -> None:
    """Nothing is made up and nothing comes in another order, or Argo CD would never be done (Bifrost PR 3755)."""
    assert rendered(values_of(name)) == list(of(name))


@every
def test_names_are_as_long_as_kubernetes_takes(name: str) -> None:
    """Also where the release's is long: a StatefulSet's revision is a label, ten letters longer than its name."""
    for each in rendered(values_of(name), release="r" * 53):
        assert len(each["metadata"]["name"]) <= (52 if each["kind"] == "StatefulSet" else 63)


def test_a_changed_configuration_rolls_pods_and_nothing_else_does() -> None:
    """By a checksum in the template."""
    names = ("defaults", "two replicas", "external redis", "keda")
    sums = [find(each, "StatefulSet", "-gateway")["spec"]["template"]["metadata"]["annotations"] for each in names]
    assert [each["checksum/config"] == sums[0]["checksum/config"] for each in sums] == [True, True, True, False]


def test_an_upgrade_changes_nothing_that_cannot_be_changed() -> None:
    """Neither selectors nor a StatefulSet's claims have the chart's version in them: each upgrade would be refused."""
    (before,) = workloads("defaults")
    (after,) = kinds(rendered(values_of("two replicas") | {"image": {"tag": "9.9.9"}}), "StatefulSet")
    for field in ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"):
        assert before["spec"][field] == after["spec"][field]
        assert "0.1.0" not in json.dumps(before["spec"][field])


def test_the_planes_apart() -> None:
    """Pages and reports have pods of their own; callers' paths, and all that nobody names, lead to the gateway's."""
    for kind in ("Ingress", "HTTPRoute"):
        name = "planes apart" if kind == "Ingress" else "route"
        (found,) = kinds(of(name), kind)
        if kind == "Ingress":
            assert found["spec"]["ingressClassName"] == "nginx"
            (rule,) = found["spec"]["rules"]
            led = {each["path"]: each["backend"]["service"]["name"] for each in rule["http"]["paths"]}
        else:
            led = {
                match["path"]["value"]: each["backendRefs"][0]["name"]
                for each in found["spec"]["rules"]
                for match in each["matches"]
            }
            # The last rule is the callers': a stream is not cut off.
            assert found["spec"]["rules"][-1]["timeouts"] == {"request": "0s"}
        assert led == {
            "/dashboard": "wb-weighbridge-control-plane",
            "/v1/admin": "wb-weighbridge-control-plane",
            "/v1/usage": "wb-weighbridge-control-plane",
            "/": "wb-weighbridge",
        }


def test_lines_of_batches_run_apart() -> None:
    """Their pods answer lines, the others take batches in; files are where all find them."""
    answers = {role: configuration("batch apart", role)["batch"].get("answers", True) for role in ("gateway", "batch")}
    assert answers == {"gateway": False, "batch": True}
    assert {configuration("batch apart", role)["batch"]["folder"] for role in ("gateway", "batch")} == {
        "/var/lib/weighbridge-files"
    }
    assert find("batch apart", "StatefulSet", "-batch")["spec"]["replicas"] == 3


@every
def test_what_is_added_reaches_every_pod(name: str) -> None:
    """Volumes with their mounts, and the job's pod too, which needs the database's certificate (langfuse-k8s #10)."""
    values = values_of(name)
    for pod in pods(name):
        (container,) = pod["spec"]["containers"]
        for volume in values.get("extraVolumes", []):
            assert volume in pod["spec"]["volumes"]
        for wanted, has in (
            (values.get("extraVolumeMounts", []), container["volumeMounts"]),
            (values.get("extraEnv", []), container["env"]),
            (values.get("imagePullSecrets", []), pod["spec"].get("imagePullSecrets", [])),
        ):
            assert all(each in has for each in wanted)
        if name == "extra authority":
            assert {"name": "SSL_CERT_FILE", "value": "/etc/weighbridge-ca/ca-bundle.crt"} in container["env"]
        if name == "extras":
            assert container["image"] == f"registry.example.com/weighbridge@{values['image']['digest']}"


@every
def test_no_name_stands_twice_in_a_list(name: str) -> None:
    """Helm 4 and Argo CD apply on the server, which refuses two variables of one name; before, the last one silently won
    (prometheus-community/helm-charts PR 6652 had the key twice).
    """
    for pod in pods(name):
        (container,) = pod["spec"]["containers"]
        for listed in (container["env"], pod["spec"]["volumes"], container.get("ports", [])):
            names = [each["name"] for each in listed]
            assert len(names) == len(set(names))
        places = [each["mountPath"] for each in container["volumeMounts"]]
        assert len(places) == len(set(places))


def test_who_asks_the_pods_is_told_how_they_speak() -> None:
    """Pods with a certificate speak TLS alone, on their Service, too."""
    for name, protocol in (("defaults", "http"), ("extra authority", "https")):
        service = find(name, "Service", "wb-weighbridge")
        assert [each["appProtocol"] for each in service["spec"]["ports"]] == [protocol]


def test_controllers_find_their_routes_by_labels() -> None:
    """BerriAI/litellm #17347: without its own label an Ingress belonged to no load balancer."""
    for line, kind, section in (("planes apart", "Ingress", "ingress"), ("route", "HTTPRoute", "httpRoute")):
        (found,) = kinds(rendered(laid_over(values_of(line), {section: {"labels": {"edge": "outer"}}})), kind)
        assert found["metadata"]["labels"]["edge"] == "outer"
        assert found["metadata"]["labels"]["app.kubernetes.io/name"] == "weighbridge"


def test_each_kind_of_pods_has_its_place() -> None:
    """Bifrost's could be put anywhere but its database (PR 6506)."""
    gateway, pages, batch = (find("places", "StatefulSet", f"-{role}")["spec"]["template"]["spec"] for role in _ROLES)
    assert (gateway["nodeSelector"], pages["nodeSelector"]) == ({"pool": "gateways"}, {"pool": "pages"})
    assert (pages["priorityClassName"], "priorityClassName" in gateway) == ("low", False)
    assert batch["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert gateway["topologySpreadConstraints"] == MATRIX["places"]["gateway"]["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in batch["topologySpreadConstraints"]] == [
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ]
    assert gateway["affinity"]["podAntiAffinity"]


def test_the_network_is_closed_but_for_what_is_named() -> None:
    """Both ways; the metadata of a cloud and the cluster's own addresses are no internet."""
    (policy,) = kinds(of("defaults"), "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    ports = sorted(port["port"] for each in policy["spec"]["egress"] for port in each["ports"])
    assert ports == [53, 53, 443, 5432, 6379]
    (internet,) = [each for each in policy["spec"]["egress"] if each["ports"][0]["port"] == 443]
    assert "169.254.0.0/16" in internet["to"][0]["ipBlock"]["except"]
    (closed,) = kinds(of("closed network"), "NetworkPolicy")
    assert sorted(port["port"] for each in closed["spec"]["egress"] for port in each["ports"]) == [53, 53, 5432]
    assert closed["spec"]["ingress"][0]["from"][0] == MATRIX["closed network"]["networkPolicy"]["ingressFrom"][0]


def test_the_edge_bounds_what_comes_in() -> None:
    """TLS of this decade, sizes and rates; the firewall only where it is switched on; a stream is not cut off."""
    (client,) = kinds(of("edge"), "ClientTrafficPolicy")
    (backend,) = kinds(of("edge"), "BackendTrafficPolicy")
    (waf,) = kinds(of("edge"), "EnvoyExtensionPolicy")
    assert client["spec"]["tls"]["minVersion"] == "1.2"
    assert client["spec"]["connection"]["connectionLimit"]["value"] == 20_000
    assert client["spec"]["path"]["escapedSlashesAction"] == "KeepUnchanged"
    assert backend["spec"]["requestBuffer"]["limit"] == "64Mi"
    assert backend["spec"]["timeout"]["http"]["requestTimeout"] == "0s"
    assert set(backend["spec"]["retry"]["retryOn"]["triggers"]) == {"connect-failure", "refused-stream"}
    (coraza,) = waf["spec"]["wasm"]
    assert (coraza["failOpen"], coraza["config"]["directives_map"]["default"][-1]) == (False, "SecRuleEngine On")
    (gateway,) = kinds(of("edge"), "Gateway")
    (route,) = kinds(of("edge"), "HTTPRoute")
    assert [each["protocol"] for each in gateway["spec"]["listeners"]] == ["HTTPS"]
    assert route["spec"]["parentRefs"] == [{"name": gateway["metadata"]["name"]}]
    assert route["spec"]["hostnames"] == ["ai.example.com"]
    off = laid_over(values_of("edge"), {"edge": {"waf": {"enabled": False}}})
    assert kinds(rendered(off), "EnvoyExtensionPolicy") == []


def test_alerts_and_boards_are_those_of_this_version() -> None:
    """As they stand in the repository."""
    monitoring = CHART.parents[2] / "dashboards" / "monitoring"
    (rules,) = kinds(of("keda"), "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((monitoring / "prometheus" / "weighbridge.rules.yml").read_text())
    boards: Manifest = {}
    for each in kinds(of("keda"), "ConfigMap"):
        boards |= {key: json.loads(text) for key, text in each["data"].items() if key.endswith(".json")}
    assert boards == {each.name: json.loads(each.read_text()) for each in (monitoring / "grafana").glob("*.json")}
    (monitor,) = kinds(of("keda"), "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"][0]["authorization"]["credentials"] == {
        "name": "weighbridge",
        "key": "metrics-token",
    }


def test_pools_of_engines_come_along(tmp_path: Path) -> None:
    """As they are rendered; what two pools share is there once, and both sides' policies let the gateway reach the engines."""
    arguments = []
    for pool in ("h100", "a100"):
        text = as_yaml(manifests(planned(name=pool, pool=pool, namespace=NAMESPACE, gateway_namespace=NAMESPACE)))
        file = tmp_path / f"{pool}.yaml"
        file.write_text(text)
        arguments += ["--set-file", f"engines.{pool}={file}"]
    objects = rendered(values_of("defaults"), *arguments)
    assert len(kinds(objects, "PriorityClass")) == 1
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))
    policies = {each["metadata"]["name"]: each["spec"] for each in kinds(objects, "NetworkPolicy")}
    (out,) = [each for each in policies["wb-weighbridge"]["egress"] if "ports" not in each]
    (pods_of,) = out["to"]
    assert pods_of["podSelector"]["matchExpressions"] == [
        {"key": "app.kubernetes.io/name", "operator": "In", "values": ["a100", "h100"]}
    ]
    (gateway,) = kinds(objects, "StatefulSet")
    for pool in ("h100", "a100"):
        (peer,) = policies[pool]["ingress"][0]["from"]
        assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
        labels = gateway["spec"]["template"]["metadata"]["labels"]
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
        (engine,) = [each for each in kinds(objects, "Deployment") if each["metadata"]["name"] == pool]
        assert engine["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == pool


def test_further_objects_are_filled_in() -> None:
    """Written as objects or as texts."""
    names = {each["metadata"]["name"] for each in kinds(of("extras"), "ConfigMap")}
    assert {"wb-more", "wb-text"} <= names


def test_the_notes_name_what_is_there() -> None:
    """Commands of objects by their kind: Bifrost's told of a Deployment where there was a StatefulSet (PR 2771)."""
    for name in ("defaults", "no persistence", "edge"):
        values = values_of(name)
        done = helm("install", "--dry-run=client", "--generate-name", values=values)
        assert done.returncode == 0, done.stderr
        notes = done.stdout.partition("NOTES:")[2]
        kind = "statefulset" if values.get("persistence", {}).get("enabled", True) else "deployment"
        assert re.findall(r"(statefulset|deployment|service)/", notes)[:3] == [kind] * 3
        assert "weighbridge keys create team_first" in notes
        assert ("https://ai.example.com/v1/chat/completions" in notes) is (name == "edge")


def _variables(workload: Manifest) -> dict[str, str | None]:
    return {each["name"]: each.get("value") for each in workload["spec"]["template"]["spec"]["containers"][0]["env"]}
