{{/*
forkgate.yaml of one kind of process, from `.Values.config`. Takes `root` and `part` (`judge` or `edge`).

Only dicts are handed about here: a round trip through `fromYaml` would make floats of large whole numbers.
*/}}
{{- define "forkgate.config" -}}
{{- $root := .root -}}
{{- $config := deepCopy $root.Values.config -}}
{{- $host := $root.Values.listenAddress -}}
{{- if not $config.pools -}}
{{- fail "config.pools: empty, name at least the pool that answers now, as in helm/forkgate/ci/first-values.yaml" -}}
{{- end -}}
{{- if not $config.home -}}
{{- fail (printf "config.home: empty, name the pool that answers now, such as %q" (first $config.pools).name) -}}
{{- end -}}
{{- range $config.rollouts -}}
{{- $shadow := default dict .shadow -}}
{{- if not (hasKey $shadow "percent") -}}
{{- $_ := set $shadow "percent" 0 -}}
{{- end -}}
{{- $_ := set . "shadow" $shadow -}}
{{- end -}}
{{- $tls := dict "ca_file" "/etc/forkgate/link/ca.crt" "cert_file" "/etc/forkgate/link/tls.crt" "key_file" "/etc/forkgate/link/tls.key" -}}
{{- $judge := default dict $config.judge -}}
{{- $_ := set $judge "tls" $tls -}}
{{- $_ := set $config "judge" $judge -}}
{{- $_ := set $config "state_dir" "/var/lib/forkgate/state" -}}
{{- if eq .part "judge" -}}
{{- $_ := set $judge "address" (printf "%s:%d" (ternary "[::]" $host (eq $host "::")) (int $root.Values.link.port)) -}}
{{- $telemetry := default dict $config.telemetry -}}
{{- $_ := set $telemetry "prometheus" (dict "host" $host "port" (int $root.Values.judge.metricsPort)) -}}
{{- $_ := set $config "telemetry" $telemetry -}}
{{- if $root.Values.admin.tlsSecret -}}
{{- $files := dict "cert_file" "/etc/forkgate/admin/tls.crt" "key_file" "/etc/forkgate/admin/tls.key" -}}
{{- if $root.Values.admin.tlsClientCa -}}
{{- $_ := set $files "client_ca_file" "/etc/forkgate/admin/ca.crt" -}}
{{- end -}}
{{- $admin := default dict $config.admin -}}
{{- $_ := set $admin "listen" (dict "host" $host "port" (int $root.Values.admin.port) "tls" $files) -}}
{{- $_ := set $config "admin" $admin -}}
{{- end -}}
{{- $config = omit $config "listen" -}}
{{- else -}}
{{- $_ := set $judge "address" (printf "%s:%d" (include "forkgate.judgeHost" $root) (int $root.Values.link.port)) -}}
{{- $listen := default dict $config.listen -}}
{{- $_ := set $listen "host" $host -}}
{{- $_ := set $listen "port" (int $root.Values.edge.port) -}}
{{- if $root.Values.edge.tlsSecret -}}
{{- $client := dict "cert_file" "/etc/forkgate/tls/tls.crt" "key_file" "/etc/forkgate/tls/tls.key" -}}
{{- if $root.Values.edge.tlsClientCa -}}
{{- $_ := set $client "client_ca_file" "/etc/forkgate/tls/ca.crt" -}}
{{- end -}}
{{- $_ := set $listen "tls" $client -}}
{{- end -}}
{{- $_ := set $config "listen" $listen -}}
{{- /* What the judge alone reads, and the credentials' files that only its pod has. */ -}}
{{- $config = omit $config "evidence" "telemetry" "admin" "hooks" -}}
{{- $pools := list -}}
{{- range $config.pools -}}
{{- $pools = append $pools (omit . "engine") -}}
{{- end -}}
{{- $_ := set $config "pools" $pools -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/*
What running edges must be restarted for. Not for rollouts: the judge's route table brings them those.
*/}}
{{- define "forkgate.edgeChecksum" -}}
{{- $without := deepCopy .Values.config -}}
{{- $_ := set $without "rollouts" list -}}
{{- $values := set (deepCopy .Values) "config" $without -}}
{{- include "forkgate.config" (dict "root" (dict "Values" $values "Release" .Release "Chart" .Chart) "part" "edge") | sha256sum -}}
{{- end -}}
