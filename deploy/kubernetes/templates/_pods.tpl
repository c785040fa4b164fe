{{/* The pod of a head: no training work, the operator's key, and Ray's ports. */}}
{{- define "govray.head" -}}
spec:
  serviceAccountName: {{ .Values.serviceAccountName }}
  containers:
    - name: ray-head
      image: {{ .Values.image | quote }}
      env:
        - {name: RAY_USAGE_STATS_ENABLED, value: "0"}
        - {name: RAY_JOB_STOP_WAIT_TIME_S, value: "30"}
        - {name: RAY_health_check_period_ms, value: "1000"}
        - {name: RAY_health_check_failure_threshold, value: "3"}
        {{- if .store }}
        - name: GOVRAY_STORE
          valueFrom: {secretKeyRef: {name: {{ .Values.service.storeSecret }}, key: url}}
        - {name: GOVRAY_STORE_KEY, value: /etc/govray-store/key}
        {{- end }}
      ports:
        - {containerPort: 6379, name: gcs}
        - {containerPort: 8265, name: dashboard}
        - {containerPort: 8000, name: serve}
      resources:
        requests: {cpu: {{ .Values.head.cpu | quote }}, memory: {{ .Values.head.memory | quote }}}
        limits: {memory: {{ .Values.head.memory | quote }}}
      securityContext: {{ include "govray.restricted" . | nindent 8 }}
      volumeMounts:
        - {name: operator-key, mountPath: /etc/govray, readOnly: true}
        {{- if .store }}
        - {name: store-key, mountPath: /etc/govray-store, readOnly: true}
        {{- end }}
  volumes:
    - name: operator-key
      secret: {secretName: {{ .Values.operatorKeySecret }}, defaultMode: 0400}
    {{- if .store }}
    - name: store-key
      secret:
        secretName: {{ .Values.service.storeSecret }}
        items: [{key: key, path: key}]
        defaultMode: 0400
    {{- end }}
{{- end }}

{{/* The pod of a worker of `.pool`: no key. */}}
{{- define "govray.worker" -}}
spec:
  serviceAccountName: {{ .Values.serviceAccountName }}
  {{- with merge (dict) (.pool.nodeSelector | default dict) (.labels | default dict) }}
  nodeSelector: {{ toJson . }}
  {{- end }}
  {{- with .pool.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: ray-worker
      image: {{ .Values.image | quote }}
      env:
        - {name: RAY_USAGE_STATS_ENABLED, value: "0"}
        {{- if .store }}
        - name: GOVRAY_STORE
          valueFrom: {secretKeyRef: {name: {{ .Values.service.storeSecret }}, key: url}}
        - {name: GOVRAY_STORE_KEY, value: /etc/govray-store/key}
        {{- end }}
      resources:
        requests: {cpu: {{ .pool.cpu | quote }}, memory: {{ .pool.memory | quote }}}
        limits:
          memory: {{ .pool.memory | quote }}
          {{- if .pool.gpu }}
          nvidia.com/gpu: {{ .pool.gpu | quote }}
          {{- end }}
      securityContext: {{ include "govray.restricted" . | nindent 8 }}
      {{- if .store }}
      volumeMounts:
        - {name: store-key, mountPath: /etc/govray-store, readOnly: true}
      {{- end }}
  {{- if .store }}
  volumes:
    - name: store-key
      secret:
        secretName: {{ .Values.service.storeSecret }}
        items: [{key: key, path: key}]
        defaultMode: 0400
  {{- end }}
{{- end }}

{{- define "govray.restricted" -}}
runAsNonRoot: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{/* What every cluster has: Ray's version, its token, and the head. */}}
{{- define "govray.cluster" -}}
rayVersion: {{ .Values.rayVersion | quote }}
authOptions: {mode: token, secretName: {{ .Values.rayTokenSecret }}}
headGroupSpec:
  rayStartParams: {num-cpus: "0", dashboard-host: "0.0.0.0"}
  template: {{ include "govray.head" . | nindent 4 }}
{{- end }}
