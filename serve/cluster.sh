# environment.sh, with HAProxy in front of the replicas. Source it in place of that, on every node:
#   . serve/cluster.sh && ray start --head
# HAProxy reaches the replicas of other nodes, so `serve run serve.app:app` listens on all interfaces
# then. Keep the nodes' ports behind a firewall.
. serve/environment.sh
export RAY_SERVE_ENABLE_HA_PROXY=1       # HAProxy before the replicas, no Python in between
export RAY_SERVE_THROUGHPUT_OPTIMIZED=1
export RAY_SERVE_HAPROXY_BINARY_PATH="$PWD/serve/haproxy" # bounds what clients may hold open
export RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S=60             # for a client that reads or sends nothing
# Requests that a dead replica left unanswered go to another one. A repeated write has no effect:
# a version is made once, and a stage never follows itself.
export RAY_SERVE_HAPROXY_RETRY_ON="conn-failure empty-response"
