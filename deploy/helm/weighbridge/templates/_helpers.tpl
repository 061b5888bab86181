{{- define "weighbridge.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 38 | trimSuffix "-" }}
{{- end }}

{{/* Room is left for a role and what a StatefulSet adds to it. */}}
{{- define "weighbridge.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 38 | trimSuffix "-" }}
{{- else if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 38 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "weighbridge.name" .) | trunc 38 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "weighbridge.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The name stays `weighbridge` whatever the release is called: engines let in pods with it (`weighbridge selfhosted render k8s`). */}}
{{- define "weighbridge.selector" -}}
app.kubernetes.io/name: weighbridge
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weighbridge.labels" -}}
{{ include "weighbridge.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "weighbridge.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "weighbridge.fullname" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{/* The sets of pods, in JSON: their role in names and labels, and their section of the values. */}}
{{- define "weighbridge.roles" -}}
{{- $roles := list (dict "role" "gateway" "values" .Values.gateway) }}
{{- if .Values.controlPlane.enabled }}{{ $roles = append $roles (dict "role" "control-plane" "values" .Values.controlPlane) }}{{ end }}
{{- if .Values.batch.enabled }}{{ $roles = append $roles (dict "role" "batch" "values" .Values.batch) }}{{ end }}
{{- toJson (dict "roles" $roles) }}
{{- end }}

{{- define "weighbridge.scales" -}}
{{- if or (dig "autoscaling" "enabled" false .) (dig "keda" "enabled" false .) }}true{{ end }}
{{- end }}

{{/* True where the database is a file in the only pod's volume. */}}
{{- define "weighbridge.isLocal" -}}
{{- if not .Values.database.existingSecret }}true{{ end }}
{{- end }}

{{/* A role's configuration file: what the values say, and what this chart decides. */}}
{{- define "weighbridge.config" -}}
{{- $root := .root }}
{{- $decided := dict "server" (dict "host" $root.Values.listenAddress "port" 8080 "workers" (int .values.workers) "drain_s" (int $root.Values.drainSeconds)) }}
{{- if $root.Values.tls.existingSecret }}
{{- $_ := set $decided.server "tls" (dict "certificate" "/etc/weighbridge-tls/tls.crt" "key" "/etc/weighbridge-tls/tls.key") }}
{{- end }}
{{- if $root.Values.metrics.existingSecret }}{{ $_ := set $decided "telemetry" (dict "metrics_token" "env:METRICS_TOKEN") }}{{ end }}
{{- if not $root.Values.pepper.existingSecret }}{{ $_ := set $decided "accounts" (dict "pepper_file" "var/pepper") }}{{ end }}
{{- $batch := dict }}
{{- if and $root.Values.batch.enabled (ne .role "batch") }}{{ $_ := set $batch "answers" false }}{{ end }}
{{- if $root.Values.files.existingClaim }}{{ $_ := set $batch "folder" "/var/lib/weighbridge-files" }}{{ end }}
{{- if $batch }}{{ $_ := set $decided "batch" $batch }}{{ end }}
{{- toYaml (mergeOverwrite (deepCopy ($root.Values.config | default dict)) $decided) }}
{{- end }}

{{/* What every container has, the migration's included: no set of the chart's own objects, for hooks run before those are there. */}}
{{- define "weighbridge.databaseEnv" -}}
{{- if .Values.database.existingSecret }}
- name: WEIGHBRIDGE_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.database.existingSecret | quote }}, key: {{ .Values.database.key | quote }}}}
{{- end }}
{{- if .Values.extraCA.configMap }}
- name: SSL_CERT_FILE
  value: /etc/weighbridge-ca/{{ .Values.extraCA.key }}
{{- end }}
{{- end }}

{{/* A container's variables, each name once (the API server refuses two, where it applies): extraEnv's go before the chart's own. */}}
{{- define "weighbridge.env" -}}
{{- $extra := dict }}
{{- range .root.Values.extraEnv }}{{ $_ := set $extra .name true }}{{ end }}
{{- $all := list }}
{{- range fromYamlArray .own }}{{ if not (hasKey $extra .name) }}{{ $all = append $all . }}{{ end }}{{ end }}
{{- toYaml (concat $all (.root.Values.extraEnv | default list)) }}
{{- end }}

{{- define "weighbridge.containerSecurity" -}}
{{- $fixed := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "capabilities" (dict "drop" (list "ALL")) }}
{{- toYaml (mergeOverwrite $fixed (.Values.containerSecurityContext | default dict)) }}
{{- end }}

{{- define "weighbridge.podSecurity" -}}
{{- $fixed := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 "fsGroupChangePolicy" "OnRootMismatch" "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- toYaml (mergeOverwrite $fixed (.Values.podSecurityContext | default dict)) }}
{{- end }}

{{- define "weighbridge.commonVolumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.temporarySize }}}
{{- if .Values.extraCA.configMap }}
- name: ca
  configMap: {name: {{ .Values.extraCA.configMap | quote }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "weighbridge.commonMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.extraCA.configMap }}
- {name: ca, mountPath: /etc/weighbridge-ca, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "weighbridge.probe" -}}
httpGet: {path: {{ .path }}, port: http, scheme: {{ ternary "HTTPS" "HTTP" (ne .root.Values.tls.existingSecret "") }}}
{{- end }}
