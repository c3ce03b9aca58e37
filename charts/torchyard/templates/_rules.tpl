{{- /* What the operator may do where jobs live. docs/installation.md gives the reason of every line. */ -}}
{{- define "torchyard.rulesWhereJobsLive" -}}
- apiGroups: [torchyard.dev]
  resources: [trainingjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [torchyard.dev]
  resources: [trainingsweeps]
  verbs: [list, watch, delete]
- apiGroups: [torchyard.dev]
  resources: [trainingjobs/status, trainingsweeps/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create]
{{- if .Values.networkPolicy.jobs }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, patch]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- if .Values.resourceClaims.countGpus }}
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get]
{{- end }}
{{- with .Values.schedulers }}
{{- if .kueue }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
- apiGroups: [kueue.x-k8s.io]
  resources: [localqueues]
  verbs: [list, watch]
- apiGroups: [visibility.kueue.x-k8s.io]
  resources: [localqueues/pendingworkloads]
  verbs: [get]
{{- end }}
{{- if .native }}
- apiGroups: [scheduling.k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch, create, delete]
{{- end }}
{{- if .volcano }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, list, watch, create, delete]
{{- end }}
{{- if .coscheduling }}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if .kai }}
- apiGroups: [scheduling.run.ai]
  resources: [podgroups]
  verbs: [get, list, watch, create, delete]
{{- end }}
{{- end }}
{{- end }}

{{- define "torchyard.rulesOfTheCluster" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list{{ if .Values.nodeNotices }}, watch{{ end }}]
- apiGroups: [torchyard.dev]
  resources: [trainingprofiles]
  verbs: [list, watch]
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- if include "torchyard.metrics" . }}
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
{{- if .Values.schedulers.kueue }}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, topologies, workloadpriorityclasses]
  verbs: [list, watch]
- apiGroups: [kueue.x-k8s.io]
  resources: [clusterqueues]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [list, watch]
{{- end }}
{{- if .Values.schedulers.coscheduling }}
- apiGroups: [""]
  resources: [nodes]
  verbs: [watch]
{{- end }}
{{- end }}

{{- define "torchyard.rulesAtHome" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "torchyard.fullname" . | quote }}]
  verbs: [get, update]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, patch]
{{- end }}

{{- /* The value of --schedulers, the preferred one first. */ -}}
{{- define "torchyard.schedulers" -}}
{{- $names := .Values.schedulers.names }}
{{- $on := list }}
{{- $boost := .Values.kueue.priorityBoost }}
{{- if and $boost (not .Values.schedulers.kueue) }}{{ fail "kueue.priorityBoost: true: Kueue is off; set schedulers.kueue to true, or kueue.priorityBoost to false" }}{{ end }}
{{- if .Values.schedulers.kueue }}{{ $on = append $on (ternary "kueue=priorityBoost" "kueue" $boost) }}{{ end }}
{{- if .Values.schedulers.native }}{{ $on = append $on "native" }}{{ end }}
{{- if .Values.schedulers.volcano }}{{ $on = append $on (printf "volcano=%s" $names.volcano) }}{{ end }}
{{- if .Values.schedulers.coscheduling }}{{ $on = append $on (printf "coscheduling=%s" $names.coscheduling) }}{{ end }}
{{- if .Values.schedulers.kai }}{{ $on = append $on (printf "kai=%s" $names.kai) }}{{ end }}
{{- join "," $on }}
{{- end }}
