{{/* The image, by its digest. */}}
{{- define "govray.image" -}}
{{- $image := required "image: name the image of deploy/Containerfile by its digest" .Values.image -}}
{{- if not (regexMatch "@sha256:[0-9a-f]{64}$" $image) }}{{ fail "image: name it by its digest, as NAME@sha256:…" }}{{ end -}}
{{ $image | quote }}
{{- end }}

{{- define "govray.labels" -}}
app.kubernetes.io/name: govray
app.kubernetes.io/instance: {{ .instance }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* A user by number: the kubelet cannot tell that one by name is not root. 1000 is the image's. */}}
{{- define "govray.user" -}}
{{- $user := .user | default 1000 | int -}}
runAsNonRoot: true
runAsUser: {{ $user }}
runAsGroup: {{ $user }}
fsGroup: {{ $user }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "govray.restricted" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{- define "govray.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
Secrets as files that the pod's user alone may read, mode 0400. The kubelet makes a secret's files
root's and lets the pod's group read them; govray refuses what a group may read. So they are copied
into memory. The folder that holds them is anybody's (kubelet: volume/emptydir, setupDir), so a
container gets each folder in it for itself. `.secrets`: the folder's name → the secret's.
*/}}
{{- define "govray.private" -}}
initContainers:
  - name: private
    image: {{ include "govray.image" . }}
    command: [sh, -ec]
    args:
      - |
        for folder in {{ keys .secrets | sortAlpha | join " " }}; do
          install -d -m 0700 /private/$folder
          install -m 0400 /secrets/$folder/* /private/$folder/
        done
    resources:
      requests: {cpu: 10m, memory: 32Mi}
      limits: {memory: 32Mi}
    securityContext: {{ include "govray.restricted" . | nindent 6 }}
    volumeMounts:
      - {name: private, mountPath: /private}
      {{- range $folder, $secret := .secrets }}
      - {name: {{ $folder }}-secret, mountPath: /secrets/{{ $folder }}, readOnly: true}
      {{- end }}
{{- end }}

{{- define "govray.privateMounts" -}}
{{- range $folder, $_ := .secrets }}
- {name: private, mountPath: /private/{{ $folder }}, subPath: {{ $folder }}, readOnly: true}
{{- end }}
{{- end }}

{{/* Where the store is, and what opens it. */}}
{{- define "govray.store" -}}
- {name: GOVRAY_STORE, value: {{ .Values.service.store | quote }}}
- {name: GOVRAY_STORE_KEY, value: /private/store/key}
- {name: PGPASSFILE, value: /private/store/pgpass}
{{- end }}

{{- define "govray.privateVolumes" -}}
- name: private
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- range $folder, $secret := .secrets }}
- name: {{ $folder }}-secret
  secret: {secretName: {{ $secret }}, defaultMode: 0400}
{{- end }}
{{- end }}

{{/* What a Ray container has on each node. `.secrets`: as above, or none. */}}
{{- define "govray.container" -}}
image: {{ include "govray.image" . }}
env:
  - {name: RAY_USAGE_STATS_ENABLED, value: "0"}
  {{- if .store }}
  {{- include "govray.store" . | nindent 2 }}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext: {{ include "govray.restricted" . | nindent 2 }}
{{- if or .secrets .Values.volumeMounts }}
volumeMounts:
  {{- if .secrets }}
  {{- include "govray.privateMounts" . | nindent 2 }}
  {{- end }}
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* What a pod has. `.place`: a pool, or the head's. */}}
{{- define "govray.pod" -}}
serviceAccountName: govray-{{ .account }}
securityContext: {{ include "govray.user" . | nindent 2 }}
{{- include "govray.pullSecrets" . }}
{{- with merge (dict) (.labels | default dict) (.place.nodeSelector | default dict) }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .place.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- if or .secrets .Values.volumes }}
volumes:
  {{- if .secrets }}
  {{- include "govray.privateVolumes" . | nindent 2 }}
  {{- end }}
  {{- with .Values.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- if .secrets }}
{{ include "govray.private" . }}
{{- end }}
{{- end }}

{{/* The pod of a head: no training work, and Ray's ports. */}}
{{- define "govray.head" -}}
metadata:
  labels: {{ include "govray.labels" . | nindent 4 }}
spec:
  automountServiceAccountToken: {{ .autoscaled | default false }}
  {{- include "govray.pod" (merge (dict "place" .Values.head) .) | nindent 2 }}
  containers:
    - name: ray-head
      {{- $more := list (dict "name" "RAY_JOB_STOP_WAIT_TIME_S" "value" "30") (dict "name" "RAY_health_check_period_ms" "value" "1000") (dict "name" "RAY_health_check_failure_threshold" "value" "3") }}
      {{- include "govray.container" (merge (dict "Values" (merge (dict "env" (concat $more .Values.env)) .Values)) .) | nindent 6 }}
      ports:
        - {containerPort: 6379, name: gcs}
        - {containerPort: 8265, name: dashboard}
        - {containerPort: 8000, name: serve}
        - {containerPort: 8080, name: metrics}
      resources:
        requests: {cpu: {{ .Values.head.cpu | quote }}, memory: {{ .Values.head.memoryGi }}Gi}
        limits: {memory: {{ .Values.head.memoryGi }}Gi}
{{- end }}

{{/* The pod of a worker of `.place`: no key. */}}
{{- define "govray.worker" -}}
metadata:
  labels: {{ include "govray.labels" . | nindent 4 }}
  {{- with .topology }}
  annotations: {kueue.x-k8s.io/podset-preferred-topology: {{ . }}}
  {{- end }}
spec:
  automountServiceAccountToken: false
  {{- include "govray.pod" . | nindent 2 }}
  containers:
    - name: ray-worker
      {{- include "govray.container" . | nindent 6 }}
      ports:
        - {containerPort: 8080, name: metrics}
        {{- if .store }}
        - {containerPort: 8000, name: serve}
      # In place of KubeRay's own, which calls wget: the image has none.
      readinessProbe:
        httpGet: {path: /-/healthz, port: serve}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 1
        {{- end }}
      resources:
        requests: {cpu: {{ .place.cpu | quote }}, memory: {{ .place.memoryGi }}Gi}
        limits:
          memory: {{ .place.memoryGi }}Gi
          {{- if .place.gpu }}
          nvidia.com/gpu: {{ .place.gpu | quote }}
          {{- end }}
          {{- range $name, $amount := .place.resources }}
          {{ $name }}: {{ $amount | quote }}
          {{- end }}
{{- end }}

{{/* What every cluster has: Ray's version, its token, and the head. */}}
{{- define "govray.cluster" -}}
rayVersion: {{ .Values.rayVersion | quote }}
authOptions: {mode: token, secretName: {{ .Values.rayTokenSecret }}}
headGroupSpec:
  rayStartParams: {num-cpus: "0", dashboard-host: "0.0.0.0"}
  template: {{ include "govray.head" . | nindent 4 }}
{{- end }}
