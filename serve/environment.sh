# Source it before Ray starts, on every node, in this deployment's folder:
#   . serve/environment.sh && ray start --head
# With it `serve run serve.app:app` listens on loopback. serve/cluster.sh is for strangers.
export GOVRAY_STORE="${GOVRAY_STORE:-sqlite:///$PWD/govray.db}" # PostgreSQL on more than one node
export GOVRAY_STORE_KEY="${GOVRAY_STORE_KEY:-$PWD/govray.db.key}" # the store's secret, the same on every node
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"             # finds serve.app
