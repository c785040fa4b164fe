#!/bin/sh
# What the image of a node has to hold: `ray up` runs this before it installs anything.
set -eu
fail() {
  echo "govray: this node's image $1. Name another in $2" >&2
  exit 1
}
file="${1:-the cluster's file}"
command -v python3 > /dev/null || fail "has no python3" "$file"
python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || fail "has another Python than 3.11, for which deploy/constraints.txt is" "$file"
python3 -m pip --version > /dev/null 2>&1 || fail "has no pip" "$file"
if grep -qs 0x10de "${PCI:-/sys/bus/pci/devices}"/*/vendor; then
  nvidia-smi -L > /dev/null 2>&1 || fail "has no NVIDIA driver for the GPU that is here" "$file"
fi
