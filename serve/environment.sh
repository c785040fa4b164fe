# Source it before Ray starts, on every node, in this deployment's folder:
#   . serve/environment.sh && ray start --head
export RAY_SERVE_ENABLE_HA_PROXY=1       # HAProxy before the replicas, no Python in between
export RAY_SERVE_THROUGHPUT_OPTIMIZED=1
export RAY_SERVE_HAPROXY_BINARY_PATH="$PWD/serve/haproxy" # bounds what clients may hold open
export RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S=60             # for a client that reads or sends nothing
# Requests that a dead replica left unanswered go to another one. A repeated write has no effect:
# a version is made once, and a stage never follows itself.
export RAY_SERVE_HAPROXY_RETRY_ON="conn-failure empty-response"
export GOVRAY_STORE="${GOVRAY_STORE:-sqlite:///$PWD/govray.db}" # PostgreSQL on more than one node
export GOVRAY_STORE_KEY="${GOVRAY_STORE_KEY:-$PWD/govray.db.key}" # the store's secret, the same on every node
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"             # finds serve.app
