{{- define "bookgate.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}
{{- define "bookgate.selector" -}}
app.kubernetes.io/name: bookgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: bookie
{{- end }}
{{- define "bookgate.labels" -}}
{{ include "bookgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
{{- define "bookgate.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end }}
{{- /* A whole number that went through JSON is a float; TOML wants it whole. */ -}}
{{- define "bookgate.settings" -}}
{{- /* Not merge, which takes a value that is false for one that is not set. */ -}}
{{- $settings := mergeOverwrite (deepCopy .Values.settings) (dict "metadata_uri" .Values.metadataUri "journal_directory" "/var/lib/bookgate/journal/data" "ledger_directory" "/var/lib/bookgate/ledgers/data") -}}
{{- if .Values.security.enabled }}
{{- $client := dict "bookie_tls" "start-tls" "bookie_tls_ca" "/etc/bookgate-secure/ca.crt" "auth_provider" "bookgate-token" -}}
{{- $settings = mergeOverwrite (dict "tls_client_ca" "/etc/bookgate-secure/ca.crt" "tls_required" true "http_tls" true "security_tokens" "/etc/bookgate-secure/tokens" "security_policy" "/etc/bookgate-secure/policy.toml" "client" $client) $settings -}}
{{- end }}
{{- range $key, $value := $settings }}{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ include "bookgate.toml" $value }}
{{- end }}{{- end }}
{{- range $table, $values := $settings }}{{- if kindIs "map" $values }}

[{{ $table }}]
{{- range $key, $value := $values }}
{{ $key }} = {{ include "bookgate.toml" $value }}
{{- end }}{{- end }}{{- end }}
{{- end }}
{{- define "bookgate.toml" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end }}
{{- /* TLS, authentication and ACL of the gateways, so that nobody else may change what the job makes. */ -}}
{{- define "bookgate.storeEnv" -}}
{{- range $key, $value := .Values.settings.gateway }}{{- if hasPrefix "zookeeper_" $key }}
- name: BOOKGATE_GATEWAY_{{ upper $key }}
  value: {{ if kindIs "string" $value }}{{ quote $value }}{{ else }}{{ include "bookgate.toml" $value | quote }}{{ end }}
{{- end }}{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- define "bookgate.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: ["ALL"]}
{{- end }}
{{- define "bookgate.scheme" -}}{{ if .Values.security.enabled }}HTTPS{{ else }}HTTP{{ end }}{{- end }}
