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

{{/*
A generated manifest with more metadata: (dict "text" TEXT "metadata" LINES). By text and not by
values: Helm would read large numbers as floats, and write them so.
*/}}
{{- define "tierline.generated" -}}
{{- $metadata := printf "\nmetadata:\n%s\n" (.metadata | indent 2) -}}
{{- regexReplaceAllLiteral "\nmetadata:\n" .text $metadata -}}
{{- end }}
