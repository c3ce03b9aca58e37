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

{{- /*
The least bytes that a value takes as JSON: its texts and keys, and one for anything else. CEL has no recursion: `levels` more are unrolled,
as many as the CRD allows. Items below the last level count as the two bytes, or five with a key, that each takes at least.
*/ -}}
{{- define "torchyard.size" -}}
{{- $v := .value -}}
{{- if .levels -}}
{{- $below := int (sub .levels 1) -}}
(type({{ $v }}) == string ? {{ $v }}.size() : type({{ $v }}) == map ? {{ $v }}.map(k{{ .levels }}, k{{ .levels }}.size() + {{ include "torchyard.size" (dict "value" (printf "%s[k%d]" $v (int .levels)) "levels" $below) }}).sum() : type({{ $v }}) == list ? {{ $v }}.map(e{{ .levels }}, {{ include "torchyard.size" (dict "value" (printf "e%d" (int .levels)) "levels" $below) }}).sum() : 1)
{{- else -}}
(type({{ $v }}) == string ? {{ $v }}.size() : type({{ $v }}) == list ? {{ $v }}.size() * 2 : type({{ $v }}) == map ? {{ $v }}.size() * 5 : 1)
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

{{- /* Whether a securityContext asks for no AppArmor profile and no SELinux label that confine less than the runtime's own. */ -}}
{{- define "torchyard.confined" -}}
(!has({{ . }}.appArmorProfile) || {{ . }}.appArmorProfile.type in ['RuntimeDefault', 'Localhost'])
        && (!has({{ . }}.seLinuxOptions) || (!has({{ . }}.seLinuxOptions.user) && !has({{ . }}.seLinuxOptions.role)
        && (!has({{ . }}.seLinuxOptions.type)
        || {{ . }}.seLinuxOptions.type in ['container_t', 'container_init_t', 'container_kvm_t', 'container_engine_t'])))
{{- end }}
