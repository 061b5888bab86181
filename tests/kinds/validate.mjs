// Reads manifests as a JSON array from standard input, and refuses the first that its published schema does not take.
import { readFileSync } from "node:fs";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";
const kinds = { ScaledObject, ServiceMonitor };
for (const each of JSON.parse(readFileSync(0, "utf-8"))) {
  new kinds[each.kind](each).validate();
}
