// Reads manifests as a JSON array from standard input, and refuses the first that its published schema does not take.
import { readFileSync } from "node:fs";
const places = {
  ScaledObject: "keda/keda.sh/v1alpha1",
  ServiceMonitor: "prometheus-operator/monitoring.coreos.com/v1",
  PrometheusRule: "prometheus-operator/monitoring.coreos.com/v1",
  HTTPRoute: "gateway-api/gateway.networking.k8s.io/v1",
  Gateway: "gateway-api/gateway.networking.k8s.io/v1",
};
for (const each of JSON.parse(readFileSync(0, "utf-8"))) {
  const found = await import(`@kubernetes-models/${places[each.kind]}/${each.kind}`);
  new found[each.kind](each).validate();
}
