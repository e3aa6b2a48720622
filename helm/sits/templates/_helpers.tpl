{{/* Names and labels. Arguments of the ones for a part: (dict "root" $ "part" "dispatcher"). */}}
{{- define "sits.name" -}}
{{- if contains "sits" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-sits" (.Release.Name | trunc 35 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "sits.selector" -}}
app.kubernetes.io/name: sits
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- with .pool }}
sits/pool: {{ . }}
{{- end }}
{{- end }}

{{- define "sits.labels" -}}
{{ include "sits.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "sits.image" -}}
{{ printf "%s-%s:%s" .root.Values.image.repository .part (.root.Values.image.tag | default .root.Chart.AppVersion) }}
{{- end }}

{{- define "sits.secret" -}}
{{ .Values.auth.existingSecret | default (include "sits.name" .) }}
{{- end }}

{{- define "sits.hasApiKeys" -}}
{{- if or .Values.auth.apiKeys .Values.auth.apiKeysInSecret }}yes{{ end }}
{{- end }}

{{/* Which API versions this cluster has. Without a cluster, as in `helm template --kube-version`, the
     version counts: helm takes itself for the newest then. */}}
{{- define "sits.hpaVersion" -}}
{{- if and (.Capabilities.APIVersions.Has "autoscaling/v2") (semverCompare ">=1.23.0-0" .Capabilities.KubeVersion.Version) }}autoscaling/v2{{ else }}autoscaling/v2beta2{{ end }}
{{- end }}
{{- define "sits.pdbVersion" -}}
{{- if and (.Capabilities.APIVersions.Has "policy/v1") (semverCompare ">=1.21.0-0" .Capabilities.KubeVersion.Version) }}policy/v1{{ else }}policy/v1beta1{{ end }}
{{- end }}

{{/* One check of health. The kubelet asks gRPC itself from 1.24 on, but not over TLS. Arguments:
     root, port, service ("" = ready, "alive" = answers at all), tls. */}}
{{- define "sits.check" -}}
{{- if or .tls (semverCompare "<1.24.0-0" .root.Capabilities.KubeVersion.Version) }}
exec:
  command: ["python", "-m", "sits_core.healthcheck", "127.0.0.1:{{ .port }}"{{ with .service }}, "--service", {{ . | quote }}{{ end }}, "--timeout", "{{ sub .root.Values.probes.timeoutSeconds 1 | max 1 }}"]
{{- else }}
grpc: { port: {{ .port }}, service: {{ .service | quote }} }
{{- end }}
timeoutSeconds: {{ .root.Values.probes.timeoutSeconds }}
{{- end }}

{{/* All three probes. Arguments: root, port, ready (a port of its own if it is another), service, tls. */}}
{{- define "sits.probes" -}}
{{- $alive := include "sits.check" (dict "root" .root "port" .port "service" "alive" "tls" .tls) -}}
startupProbe:
  {{- $alive | nindent 2 }}
  periodSeconds: 2
  failureThreshold: {{ div .root.Values.probes.startupSeconds 2 | max 1 }}
livenessProbe:
  {{- $alive | nindent 2 }}
  periodSeconds: {{ .root.Values.probes.periodSeconds }}
  failureThreshold: 6
readinessProbe:
  {{- include "sits.check" (dict "root" .root "port" .port "service" (.service | default "") "tls" .tls) | nindent 2 }}
  periodSeconds: {{ .root.Values.probes.periodSeconds }}
  failureThreshold: 2
{{- end }}

{{/* Variables that all services get. Argument: root. */}}
{{- define "sits.environment" -}}
- { name: POD_IP, valueFrom: { fieldRef: { fieldPath: status.podIP } } }
- { name: POD_NAME, valueFrom: { fieldRef: { fieldPath: metadata.name } } }
- { name: NODE_NAME, valueFrom: { fieldRef: { fieldPath: spec.nodeName } } }
- { name: OTEL_RESOURCE_ATTRIBUTES, value: "k8s.namespace.name={{ .Release.Namespace }},k8s.pod.name=$(POD_NAME),k8s.node.name=$(NODE_NAME)" }
- { name: SITS_ADVERTISE_HOST, value: "$(POD_IP)" }
- { name: SITS_MESH_TOKEN_FILE, value: /sits/secrets/mesh-token }
- { name: SITS_ADMIN_TOKEN_FILE, value: /sits/secrets/admin-token }
- { name: SITS_REDIS_URL, value: {{ include "sits.redisUrl" . | quote }} }
{{- if or .Values.redis.bundled .Values.auth.redisPassword .Values.auth.existingSecret }}
- { name: SITS_REDIS_PASSWORD_FILE, value: /sits/secrets/redis-password }
{{- end }}
- { name: SITS_REDIS_PREFIX, value: {{ include "sits.name" . | quote }} }
- { name: SITS_SHM_DIR, value: /sits/shm }
- { name: SITS_DRAIN_GRACE_S, value: {{ .Values.drain.drainSeconds | quote }} }
{{- if .Values.tls.existingSecret }}
- { name: SITS_TLS_CERT_FILE, value: /sits/tls/tls.crt }
- { name: SITS_TLS_KEY_FILE, value: /sits/tls/tls.key }
- { name: SITS_TLS_CA_FILE, value: /sits/tls/ca.crt }
- { name: SITS_TLS_SERVER_NAME, value: {{ .Values.tls.serverName | quote }} }
- { name: SITS_TLS_REQUIRE_CLIENT_CERT, value: {{ .Values.tls.requireClientCert | quote }} }
- { name: SITS_TLS_METRICS, value: {{ .Values.tls.metrics | quote }} }
{{- end }}
{{- end }}

{{- define "sits.redisUrl" -}}
{{- if .Values.redis.bundled }}redis://{{ include "sits.name" . }}-redis:6379/0{{ else }}{{ required "redis.url is needed when redis.bundled is false" .Values.redis.url }}{{ end }}
{{- end }}

{{/* Settings of a service over those of all services. Arguments: root, settings. */}}
{{- define "sits.settings" -}}
{{- range $name, $value := mergeOverwrite (deepCopy .root.Values.settings) .settings }}
- { name: {{ $name }}, value: {{ $value | quote }} }
{{- end }}
{{- end }}

{{/* What every pod has in common. Arguments: root, part, values. */}}
{{- define "sits.pod" -}}
serviceAccountName: {{ include "sits.name" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext: {{ toJson .root.Values.podSecurityContext }}
terminationGracePeriodSeconds: {{ include "sits.terminationSeconds" .root }}
{{- with .values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - { key: kubernetes.io/arch, operator: In, values: {{ toJson .root.Values.architectures }} }
            - { key: kubernetes.io/os, operator: In, values: [linux] }
{{- end }}

{{/* With an autoscaler: as many as there are now. Left out, the number would fall to 1 when the
     autoscaler is switched on, and named, each upgrade would undo its work. */}}
{{- define "sits.replicas" -}}
{{- if .values.autoscaling.enabled }}
{{- $now := lookup "apps/v1" "Deployment" .root.Release.Namespace (printf "%s-%s" (include "sits.name" .root) .name) }}
{{- max (dig "spec" "replicas" 0 ($now | default dict)) .values.autoscaling.minReplicas }}
{{- else }}{{ .values.replicas }}{{ end }}
{{- end }}

{{/* Guards: a drain that is too short would cut requests off. */}}
{{- define "sits.terminationSeconds" -}}
{{- with .Values.drain }}
{{- if lt (int .drainSeconds) (int .longestRequestSeconds) }}
{{- fail (printf "drain.drainSeconds=%v is less than drain.longestRequestSeconds=%v: a rolling update would cut requests off" .drainSeconds .longestRequestSeconds) }}
{{- end }}
{{- add .preStopSeconds .drainSeconds 10 }}
{{- end }}
{{- end }}

{{/* Pods of one part over nodes and zones, as far as it goes. Arguments: as sits.selector. */}}
{{- define "sits.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "sits.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{- define "sits.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
lifecycle:
  preStop:
    exec: { command: ["python", "-c", "import time; time.sleep({{ .Values.drain.preStopSeconds }})"] }
{{- end }}

{{- define "sits.mounts" -}}
- { name: secrets, mountPath: /sits/secrets, readOnly: true }
- { name: shm, mountPath: /sits/shm }
- { name: tmp, mountPath: /tmp }
{{- if .Values.tls.existingSecret }}
- { name: tls, mountPath: /sits/tls, readOnly: true }
{{- end }}
{{- end }}

{{/* Arguments: root, tmp (size limit). */}}
{{- define "sits.volumes" -}}
- name: secrets
  secret: { secretName: {{ include "sits.secret" .root }}, defaultMode: 0440 }
- name: shm
  {{- if .root.Values.sharedMemory.hostPath }}
  hostPath: { path: {{ .root.Values.sharedMemory.hostPath }}, type: Directory }
  {{- else }}
  emptyDir: { medium: Memory, sizeLimit: {{ .root.Values.sharedMemory.sizeLimit }} }
  {{- end }}
- name: tmp
  emptyDir: { sizeLimit: {{ .tmp | default "16Mi" }} }
{{- if .root.Values.tls.existingSecret }}
- name: tls
  secret: { secretName: {{ .root.Values.tls.existingSecret }}, defaultMode: 0440 }
{{- end }}
{{- end }}

{{/* Scraped by Prometheus where annotations say so. Arguments: root, port, values. */}}
{{- define "sits.podAnnotations" -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
prometheus.io/scheme: {{ ternary "https" "http" (and (ne .root.Values.tls.existingSecret "") .root.Values.tls.metrics) }}
{{- /* Read when a process starts: a change replaces the pods. */}}
{{- if and .root.Values.tenants .tenants }}
sits/tenants: {{ toJson .root.Values.tenants | sha256sum | trunc 16 | quote }}
{{- end }}
{{- with .values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
