#!/usr/bin/env bash
# Runs compute-sanitizer over small calls on a machine with a Hopper GPU: `tools/device_sanitize.sh
# [TOOL...]`; by default memcheck, racecheck and synccheck, each within SANITIZE_SECONDS (100). Needs
# what tools/device_test.sh needs. docs/tests.md says which reports are false alarms, and why.
set -uo pipefail
cd "$(dirname "$0")/.."
export CUDA_DEVICE_MAX_CONNECTIONS=32 PYTHONUNBUFFERED=1 PYTHONPATH="${PYTHONPATH:-}:tests/device"
sanitizer="$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)"
failed=0
sanitized() {  # tool, ranks
  timeout "${SANITIZE_SECONDS:-100}" "$sanitizer" --tool "$1" --error-exitcode 9 \
    --print-limit 10000 --kernel-name kns=monomoe python3 tests/device/sanitized.py "$2" 2>&1
}
run() {  # tool, ranks
  local start=$SECONDS rc
  if [[ $1 == racecheck ]]; then
    sanitized "$@" | python3 tools/racecheck_report.py
    rc=${PIPESTATUS[1]}
  else
    sanitized "$@" | tail -n 40
    rc=${PIPESTATUS[0]}
  fi
  echo "== $1, $2 ranks: exit code $rc in $((SECONDS - start)) s"
  ((rc == 0)) || failed=1
}
for tool in ${@:-memcheck racecheck synccheck}; do
  run "$tool" 1
  if [[ $tool == memcheck ]]; then run "$tool" 2; fi
done
exit $failed
