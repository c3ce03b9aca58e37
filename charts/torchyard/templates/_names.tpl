{{- define "torchyard.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* Leaves room for "-operator" and the like within the 63 characters of a Service's name. */ -}}
{{- define "torchyard.fullname" -}}
{{- $name := include "torchyard.name" . }}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "torchyard.serviceAccount" -}}
{{- default (.Values.serviceAccount.create | ternary (include "torchyard.fullname" .) "default") .Values.serviceAccount.name }}
{{- end }}

{{- define "torchyard.intakeHost" -}}
{{- printf "%s-intake.%s.svc" (include "torchyard.fullname" .) .Release.Namespace }}
{{- end }}

{{- define "torchyard.image" -}}
{{- with .Values.image -}}
{{- .digest | empty | ternary (printf "%s:%s" .repository (default $.Chart.AppVersion .tag)) (printf "%s@%s" .repository .digest) }}
{{- end }}
{{- end }}

{{- define "torchyard.agentImage" -}}
{{- default (include "torchyard.image" .) .Values.agentImage }}
{{- end }}

{{- define "torchyard.trainerImage" -}}
{{- default (printf "ghcr.io/torchyard/trainer:%s" .Chart.AppVersion) .Values.trainerImage }}
{{- end }}

{{- define "torchyard.selector" -}}
app.kubernetes.io/name: {{ include "torchyard.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "torchyard.labels" -}}
{{ include "torchyard.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "torchyard.pageSelector" -}}
app.kubernetes.io/name: {{ include "torchyard.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: page
{{- end }}

{{- define "torchyard.pageLabels" -}}
{{ include "torchyard.pageSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Signs certificates for a host, beside the container that uses them. It alone sees the key of the authority. */ -}}
{{- define "torchyard.certificateContainer" -}}
{{- $ := index . 0 -}}
- name: certificate
  image: {{ include "torchyard.image" $ | quote }}
  imagePullPolicy: {{ $.Values.image.pullPolicy }}
  restartPolicy: Always
  command: [python3, -m, torchyard.app.certificate]
  args: [--ca=/ca, --out=/tls, "--host={{ index . 1 }}", "--days={{ $.Values.tls.days }}"]
  startupProbe:
    exec: { command: [test, -e, /tls/ca.crt] }
    periodSeconds: 1
    failureThreshold: 60
  resources:
    requests: { cpu: 5m, memory: 48Mi, ephemeral-storage: 1Mi }
    limits: { memory: 128Mi, ephemeral-storage: 16Mi }
  securityContext: {{- include "torchyard.containerSecurity" $ | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - { name: ca, mountPath: /ca, readOnly: true }
    - { name: tls, mountPath: /tls }
{{- end }}

{{- /* The `restricted` Pod Security Standard, and a root file system that is read-only. */ -}}
{{- define "torchyard.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "torchyard.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- /* Not empty if /metrics is served. */ -}}
{{- define "torchyard.metrics" -}}
{{- with .Values.metrics }}{{ if or .enabled .serviceMonitor.enabled .prometheusRule.enabled .dashboard.enabled }}true{{ end }}{{ end }}
{{- end }}

{{- /* The Secret that holds the CA of the intake's certificate, and its key there. */ -}}
{{- define "torchyard.caSecret" -}}
{{- if .Values.tls.existingSecret -}}
{ name: {{ .Values.tls.existingSecret | quote }}, key: ca.crt }
{{- else -}}
{ name: {{ include "torchyard.fullname" . }}-ca, key: tls.crt }
{{- end }}
{{- end }}
