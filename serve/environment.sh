# Source it before Ray starts, on every node, in this deployment's folder:
#   . serve/environment.sh && ray start --head
export RAY_SERVE_ENABLE_HA_PROXY=1       # HAProxy before the replicas, and no Python in between
export RAY_SERVE_THROUGHPUT_OPTIMIZED=1
export RAY_SERVE_HAPROXY_BINARY_PATH="$PWD/serve/haproxy" # bounds what strangers may hold open
export RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S=60             # a reader that takes nothing, or says nothing
# What a replica that died left unanswered goes to another one. No write has an effect when it
# comes twice: a version is made once, and a stage follows itself never.
export RAY_SERVE_HAPROXY_RETRY_ON="conn-failure empty-response"
export GOVRAY_STORE="${GOVRAY_STORE:-sqlite:///$PWD/govray.db}" # PostgreSQL on more than one node
export GOVRAY_STORE_KEY="${GOVRAY_STORE_KEY:-$PWD/govray.db.key}" # the store's secret, the same on every node
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"             # finds serve.app
