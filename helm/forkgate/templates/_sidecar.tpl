{{/*
An edge beside an engine, as a native sidecar: an init container with restartPolicy Always, which starts before the engine and
ends after it. For a chart that has this one as a dependency:

    spec:
      template:
        metadata:
          labels: {{- include "forkgate.sidecar.labels" .Subcharts.forkgate | nindent 12 }}
        spec:
          initContainers: {{- include "forkgate.sidecar" .Subcharts.forkgate | nindent 12 }}
          volumes: {{- include "forkgate.sidecar.volumes" .Subcharts.forkgate | nindent 12 }}

Point the Service at the port `http` of the pod instead of the engine's.
*/}}
{{- define "forkgate.sidecar" -}}
- name: forkgate
  restartPolicy: Always
  {{- include "forkgate.edge" (dict "root" . "prefix" (printf "%s-" .Values.sidecar.volumePrefix)) | nindent 2 }}
{{- end -}}

{{/* Secrets are readable for every user of the one container that mounts them: your pod may have another fsGroup. */}}
{{- define "forkgate.sidecar.volumes" -}}
{{- include "forkgate.volumes" (dict "root" . "part" "edge" "prefix" (printf "%s-" .Values.sidecar.volumePrefix) "mode" 292) }}
{{- end -}}
