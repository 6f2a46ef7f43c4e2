{{/*
Names and labels.
*/}}
{{- define "forkgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that what is put behind it still fits the 63 of a label. */}}
{{- define "forkgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "forkgate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "forkgate.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What a selector may hold: it can never change. Takes `root` and `component`. */}}
{{- define "forkgate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "forkgate.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Takes `root` and `component`. */}}
{{- define "forkgate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "forkgate.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Of pods: nothing that changes with the chart's version, so that an upgrade restarts only what it changes. */}}
{{- define "forkgate.podLabels" -}}
{{ include "forkgate.selectorLabels" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Lets a pod with a sidecar through the judge's NetworkPolicy. Put it among your pod's labels. */}}
{{- define "forkgate.sidecar.labels" -}}
forkgate/edge-of: {{ include "forkgate.fullname" . }}
{{- end -}}

{{- define "forkgate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "forkgate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* A digest is what counts; a tag beside it would only say what somebody thought it was. */}}
{{- define "forkgate.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest -}}
@{{ $image.digest }}
{{- else -}}
:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- define "forkgate.judgeLinkSecret" -}}
{{- default (printf "%s-judge-link" (include "forkgate.fullname" .)) .Values.link.judgeSecret -}}
{{- end -}}

{{- define "forkgate.edgeLinkSecret" -}}
{{- default (printf "%s-edge-link" (include "forkgate.fullname" .)) .Values.link.edgeSecret -}}
{{- end -}}

{{/* The name that the judge's certificate must carry. */}}
{{- define "forkgate.judgeHost" -}}
{{- printf "%s-judge.%s.svc" (include "forkgate.fullname" .) .Release.Namespace -}}
{{- end -}}
