{{/*
Names are fixed: the admission policies know the agents by their service account, and there is one
Tierline in a cluster. A second release is refused by Helm, because the first one owns the objects.
*/}}

{{/* The labels of every object. */}}
{{- define "tierline.labels" -}}
app.kubernetes.io/name: tierline
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The labels by which the operator's pods are found; they never change. */}}
{{- define "tierline.operator.selector" -}}
app.kubernetes.io/name: tierline
app.kubernetes.io/component: operator
{{- end }}

{{/* The labels by which the agents' pods of all pools are found; they never change. */}}
{{- define "tierline.agent.selector" -}}
app.kubernetes.io/name: tierline
app.kubernetes.io/component: agent
{{- end }}

{{/* The reference of an image: (dict "image" VALUES "chart" .Chart). */}}
{{- define "tierline.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* A compute resource as a number, to compare: (dict "quantity" VALUE "at" "the value's name"). */}}
{{- define "tierline.quantity" -}}
{{- $text := toString .quantity -}}
{{- if not (regexMatch "^[0-9]+(\\.[0-9]+)?(e\\+[0-9]{1,2}|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$" $text) -}}
{{- fail (printf "%s is %q; write a quantity such as 500m or 512Mi" .at $text) -}}
{{- end -}}
{{- $number := regexFind "^[0-9]+(\\.[0-9]+)?(e\\+[0-9]+)?" $text | float64 -}}
{{- $unit := regexReplaceAll "^[0-9.]+(e\\+[0-9]+)?" $text "" -}}
{{- $powers := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- mulf $number (get $powers $unit | float64) | printf "%.3f" -}}
{{- end }}

{{/*
Compute resources as JSON for fromJson; fails where a request is above its limit, as the API server
would: (dict "resources" VALUES "at" "the value's name").
*/}}
{{- define "tierline.resources" -}}
{{- $limits := .resources.limits | default dict -}}
{{- range $name, $request := .resources.requests | default dict -}}
{{- if hasKey $limits $name -}}
{{- $limit := get $limits $name -}}
{{- $asked := include "tierline.quantity" (dict "quantity" $request "at" (printf "%s.requests.%s" $.at $name)) | float64 -}}
{{- $most := include "tierline.quantity" (dict "quantity" $limit "at" (printf "%s.limits.%s" $.at $name)) | float64 -}}
{{- if gt $asked $most -}}
{{- fail (printf "%s.requests.%s %v is above the limit %v; lower it, or raise limits.%s" $.at $name $request $limit $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- .resources | toJson -}}
{{- end }}

{{/*
A generated manifest with more metadata: (dict "text" TEXT "metadata" LINES). By text and not by
values: Helm would read large numbers as floats, and write them so.
*/}}
{{- define "tierline.generated" -}}
{{- $metadata := printf "\nmetadata:\n%s\n" (.metadata | indent 2) -}}
{{- regexReplaceAllLiteral "\nmetadata:\n" .text $metadata -}}
{{- end }}
