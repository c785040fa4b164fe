#!/usr/bin/env bash
# What needs a GPU, in at most seven minutes: the tests with the mark gpu, then benchmarks.step for the
# cases of benchmarks/performance.md. It needs torch 2.9 or later and the packages of the base
# install; no Ray, no network.
#
#   benchmarks/gpu_session.sh              on a machine with one GPU
#   DEVICE=cpu benchmarks/gpu_session.sh   tiny sizes on a CPU; shows that it runs
#
# $OUT, build/gpu by default, gets session.log, tests.xml, and steps.jsonl with one line for each run
# of the benchmark. Each part has its own limit, so what ran is there even if a later part hangs.
# Packages that the machine lacks may lie in $PACKAGES, build/gpu-packages by default:
#
#   pip install --target build/gpu-packages --python-version 3.12 --only-binary=:all: \
#     pydantic cryptography rfc8785 license-expression rfc3161-client
set -uo pipefail
cd "$(dirname "$0")/.."

device="${DEVICE:-cuda}"
out="${OUT:-build/gpu}"
python="$(command -v python3 || command -v python)"
export PYTHONPATH="$PWD:${PACKAGES:-$PWD/build/gpu-packages}"
mkdir -p "$out"
: > "$out/steps.jsonl"
exec > >(tee "$out/session.log") 2>&1

failed=()
# part NAME SECONDS COMMAND…
part() {
  local name="$1" limit="$2" began="$SECONDS" code=0
  shift 2
  # Interrupted, pytest still writes its report.
  timeout --signal=INT --kill-after=5 "$limit" "$@" || code=$?
  ((code == 0)) || failed+=("$name")
  echo "== $name: exit $code after $((SECONDS - began)) s of $limit"
}

# step NAME SECONDS OPTIONS…: the last line that it prints is JSON.
step() {
  local name="$1" limit="$2" said result
  shift 2
  said="$(mktemp)"
  part "$name" "$limit" "$python" -m benchmarks.step --device "$device" --no-memory "$@" > "$said"
  cat "$said"
  result="$(grep '^{' "$said" | tail -n 1)"
  [[ -z $result ]] || printf '{"part": "%s", "cases": %s}\n' "$name" "$result" >> "$out/steps.jsonl"
  rm -f "$said"
}

# Only the files with such tests: others import what is not there.
mapfile -t files < <(grep -rl --include='test_*.py' 'pytest\.mark\.gpu' tests)
part tests 130 "$python" -m pytest -v -m gpu --junitxml "$out/tests.xml" "${files[@]}"

if [[ $device == cpu ]]; then
  step allow_all 60 --quick --pairs 1 --processes 1 --methods ddp,governed --cases allow_all
else
  methods=(--methods ddp,governed,governed_graphs)
  for case in allow_all mix_50_30_20 upper_50 upper_90 two_domains; do
    step "$case" 30 --pairs 8 --warm-up 6 "${methods[@]}" --cases "$case"
  done
  # The same rows by passes that share kernels: what WRITE_TOKENS should be on a GPU.
  for case in mix_50_30_20 upper_50; do
    step "$case sliced" 30 --pairs 8 --warm-up 6 --cases "$case" \
      --methods ddp,governed_graphs,governed_sliced_graphs
  done
  step adapters_100 35 --pairs 4 --warm-up 40 "${methods[@]}" --cases adapters_100
  step large 35 --pairs 5 --warm-up 5 "${methods[@]}" --cases mix_50_30_20 \
    --blocks 24 --width 2048 --rows 10
fi
((${#failed[@]} == 0)) || { echo "did not end well: ${failed[*]}"; exit 1; }
