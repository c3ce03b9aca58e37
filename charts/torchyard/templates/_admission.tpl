{{- /* Whether a priority class may be used: the listed ones; without a list, all but those of the cluster's own components. */ -}}
{{- define "torchyard.priority" -}}
{{- if .allowed -}}
{{ .name }} in {{ toJson .allowed }}
{{- else -}}
!{{ .name }}.startsWith('system-')
{{- end }}
{{- end }}

{{- /* Whether a toleration `t` may be used; one without a key tolerates every taint. */ -}}
{{- define "torchyard.toleration" -}}
{{- if . -}}
has(t.key) && t.key != '' && !(t.key in {{ toJson . | replace "\"" "'" }})
{{- else -}}
true
{{- end }}
{{- end }}

{{- /* Where a policy holds: in the namespaces of a list; everywhere without one. */ -}}
{{- define "torchyard.admissionScope" -}}
{{- if . -}}
matchResources:
  namespaceSelector:
    matchExpressions:
      - { key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }} }
{{- end }}
{{- end }}
