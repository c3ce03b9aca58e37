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
{{- end }}

{{- define "torchyard.rulesOfTheCluster" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list]
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- if include "torchyard.metrics" . }}
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
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
