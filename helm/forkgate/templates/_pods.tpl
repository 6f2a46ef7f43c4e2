{{/*
What edges and the judge have in common in a pod. Volumes' names begin with `prefix`, which is empty in the chart's own pods.
*/}}

{{/* Takes `root`, `part`, `prefix` and `mode` (file mode of secrets). */}}
{{- define "forkgate.volumes" -}}
{{- $root := .root -}}
{{- $name := printf "%s-%s" (include "forkgate.fullname" $root) .part -}}
- name: {{ .prefix }}config
  {{- if eq $root.Values.configKind "Secret" }}
  secret:
    secretName: {{ $name }}
    defaultMode: {{ .mode }}
  {{- else }}
  configMap:
    name: {{ $name }}
  {{- end }}
- name: {{ .prefix }}link
  secret:
    secretName: {{ include (printf "forkgate.%sLinkSecret" .part) $root }}
    defaultMode: {{ .mode }}
{{- if and (eq .part "edge") $root.Values.edge.tlsSecret }}
- name: {{ .prefix }}tls
  secret:
    secretName: {{ $root.Values.edge.tlsSecret }}
    defaultMode: {{ .mode }}
{{- end }}
{{- if eq .part "judge" }}
{{- with $root.Values.admin.tlsSecret }}
- name: admin
  secret:
    secretName: {{ . }}
    defaultMode: {{ $.mode }}
{{- end }}
{{- with $root.Values.admin.tokensSecret }}
- name: tokens
  secret:
    secretName: {{ . }}
    defaultMode: {{ $.mode }}
{{- end }}
{{- end }}
{{- with $root.Values.policyConfigMap }}
- name: {{ $.prefix }}policies
  configMap:
    name: {{ . }}
{{- end }}
- name: {{ .prefix }}tmp
  emptyDir:
    sizeLimit: 64Mi
{{- if eq .part "edge" }}
- name: {{ .prefix }}state
  emptyDir:
    sizeLimit: 64Mi
{{- end }}
{{- with (index $root.Values .part).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes `root`, `part` and `prefix`. */}}
{{- define "forkgate.volumeMounts" -}}
{{- $root := .root -}}
- name: {{ .prefix }}config
  mountPath: /etc/forkgate/config
  readOnly: true
- name: {{ .prefix }}link
  mountPath: /etc/forkgate/link
  readOnly: true
{{- if and (eq .part "edge") $root.Values.edge.tlsSecret }}
- name: {{ .prefix }}tls
  mountPath: /etc/forkgate/tls
  readOnly: true
{{- end }}
{{- if eq .part "judge" }}
{{- if $root.Values.admin.tlsSecret }}
- name: admin
  mountPath: /etc/forkgate/admin
  readOnly: true
{{- end }}
{{- if $root.Values.admin.tokensSecret }}
- name: tokens
  mountPath: /etc/forkgate/tokens
  readOnly: true
{{- end }}
{{- end }}
{{- if $root.Values.policyConfigMap }}
- name: {{ .prefix }}policies
  mountPath: /etc/forkgate/policies
  readOnly: true
{{- end }}
- name: {{ .prefix }}tmp
  mountPath: /tmp
- name: {{ .prefix }}state
  mountPath: /var/lib/forkgate
{{- with (index $root.Values .part).extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes `root` and `part`. */}}
{{- define "forkgate.container" -}}
image: {{ include "forkgate.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [{{ .part }}]
env:
  - name: FORKGATE_CONFIG
    value: /etc/forkgate/config/forkgate.yaml
  {{- with (index .root.Values .part).extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
resources:
  {{- toYaml (index .root.Values .part).resources | nindent 2 }}
{{- end -}}

{{/* Takes `root` and `prefix`. */}}
{{- define "forkgate.edge" -}}
{{ include "forkgate.container" (dict "root" .root "part" "edge") }}
ports:
  - name: http
    containerPort: {{ .root.Values.edge.port }}
startupProbe:
  {{- toYaml .root.Values.edge.startupProbe | nindent 2 }}
readinessProbe:
  {{- toYaml .root.Values.edge.readinessProbe | nindent 2 }}
volumeMounts:
  {{- include "forkgate.volumeMounts" (dict "root" .root "part" "edge" "prefix" .prefix) | nindent 2 }}
{{- end -}}
