{{- define "kvlane.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvlane.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kvlane.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kvlane.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What pods are found by. Takes root and component. */}}
{{- define "kvlane.selector" -}}
app.kubernetes.io/name: {{ include "kvlane.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* What pods carry: nothing that a new version of the chart changes, or every engine would start over with it. */}}
{{- define "kvlane.podLabels" -}}
{{ include "kvlane.selector" . }}
app.kubernetes.io/part-of: kvlane
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kvlane.labels" -}}
{{ include "kvlane.selector" . }}
app.kubernetes.io/part-of: kvlane
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image's name: by digest if there is one. Takes root and image. */}}
{{- define "kvlane.image" -}}
{{- $name := .image.repository -}}
{{- if and (eq .image.tag "latest") (not .image.digest) -}}
{{- fail (printf "the image %s has the tag latest: expected a version or a digest" $name) -}}
{{- end -}}
{{- with .root.Values.global.imageRegistry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The bridge's image: the router's, or another version of it. */}}
{{- define "kvlane.bridgeImage" -}}
{{- $own := .Values.bridge.image -}}
{{- $image := .Values.image -}}
{{- if or $own.tag $own.digest -}}
{{- $image = dict "repository" .Values.image.repository "tag" $own.tag "digest" $own.digest -}}
{{- end -}}
{{- include "kvlane.image" (dict "root" . "image" $image) -}}
{{- end -}}

{{- define "kvlane.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (printf "%s-router" (include "kvlane.fullname" .)) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "kvlane.modelName" -}}
{{- if .Values.workers.simulated -}}
{{- .Values.workers.simulation.modelName -}}
{{- else -}}
{{- .Values.model.name | default (base .Values.model.path) -}}
{{- end -}}
{{- end -}}

{{/* "true" when weights are needed. */}}
{{- define "kvlane.weights" -}}
{{- if and .Values.model.storage.enabled (not .Values.workers.simulated) -}}true{{- end -}}
{{- end -}}

{{/* "true" when every engine has a bridge beside it. */}}
{{- define "kvlane.bridged" -}}
{{- if and .Values.workers.publishEvents (eq .Values.router.eventPlane "nats") -}}true{{- end -}}
{{- end -}}

{{/* The variable that says where NATS is. */}}
{{- define "kvlane.natsEnv" -}}
- name: NATS_SERVER
  {{- if .Values.nats.enabled }}
  value: nats://{{ include "kvlane.fullname" . }}-nats:4222
  {{- else if .Values.nats.existingSecret.name }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.nats.existingSecret.name }}
      key: {{ .Values.nats.existingSecret.key }}
  {{- else }}
  value: {{ .Values.nats.url | quote }}
  {{- end }}
{{- end -}}

{{- define "kvlane.dynamoEnv" -}}
- name: DYN_NAMESPACE
  value: {{ .Values.dynamo.namespace | quote }}
- name: DYN_COMPONENT
  value: {{ .Values.dynamo.component | quote }}
- name: DYN_ENDPOINT
  value: {{ .Values.dynamo.endpoint | quote }}
{{- end -}}

{{/* Where pods go: the group's wishes and the component's own. Takes group and own. */}}
{{- define "kvlane.placement" -}}
{{- $selector := merge (deepCopy (.own.nodeSelector | default dict)) (.group.nodeSelector | default dict) -}}
{{- $tolerations := concat (.group.tolerations | default list) (.own.tolerations | default list) -}}
{{- with $selector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kvlane.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What the schema cannot see: values that contradict each other. */}}
{{- define "kvlane.check" -}}
{{- $r := .Values.router -}}
{{- $nats := or .Values.nats.enabled .Values.nats.url .Values.nats.existingSecret.name -}}
{{- if and .Values.nats.enabled (or .Values.nats.url .Values.nats.existingSecret.name) -}}
{{- fail "nats.url and nats.existingSecret are for another server: expected nats.enabled=false with them" -}}
{{- end -}}
{{- if and (eq $r.eventPlane "nats") (not $nats) -}}
{{- fail "router.eventPlane is nats and there is none: expected nats.enabled=true, nats.url, nats.existingSecret.name, or router.eventPlane=zmq" -}}
{{- end -}}
{{- if and (eq $r.discovery "nats") (ne $r.eventPlane "nats") -}}
{{- fail "router.discovery is nats: expected router.eventPlane=nats, because bridges announce the workers" -}}
{{- end -}}
{{- if and (eq $r.discovery "nats") (not .Values.workers.publishEvents) -}}
{{- fail "router.discovery is nats: expected workers.publishEvents=true, because bridges announce the workers" -}}
{{- end -}}
{{- if and (eq $r.discovery "static") (not $r.workers) -}}
{{- fail "router.discovery is static and router.workers is empty: expected at least one worker" -}}
{{- end -}}
{{- if and (not .Values.workers.enabled) (has $r.discovery (list "kubernetes" "dns")) -}}
{{- fail "workers.enabled is false: expected router.discovery=static or nats, because there is no service of workers" -}}
{{- end -}}
{{- if and .Values.loadgen.readOnly (not .Values.loadgen.start) -}}
{{- fail "loadgen.readOnly needs loadgen.start=true: nobody else could start it" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.className) (not .Values.gateway.parentRefs) -}}
{{- fail "gateway.enabled needs gateway.className (a Gateway is made) or gateway.parentRefs (one is there)" -}}
{{- end -}}
{{- if and .Values.model.storage.create .Values.model.storage.nfs.server (not .Values.model.storage.nfs.path) -}}
{{- fail "model.storage.nfs.server is given and model.storage.nfs.path is not" -}}
{{- end -}}
{{- if and .Values.workers.enabled (not .Values.workers.simulated) -}}
{{- range $name, $spec := .Values.workers.pools -}}
{{- $pool := mergeOverwrite (deepCopy $.Values.workers.defaults) (deepCopy ($spec | default dict)) -}}
{{- if and (eq $pool.engine "trtllm") $.Values.workers.publishEvents (ne $r.discovery "nats") -}}
{{- fail (printf "workers.pools.%s has engine trtllm: expected router.discovery=nats, because only its bridge says what it is, and its events can be read by one alone" $name) -}}
{{- end -}}
{{- if and (eq $pool.engine "trtllm") $.Values.model.name (ne $.Values.model.name (base $.Values.model.path)) -}}
{{- fail (printf "workers.pools.%s has engine trtllm, which calls the model by its folder: expected model.name to be empty or %s" $name (base $.Values.model.path)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
