#!/usr/bin/env bash
# Shows where the kernels' warps spend their time, on a machine with a Hopper GPU: `tools/device_profile.sh
# [CASE...]` (docs/bench.md; dsv3-ep8 and qwen3-30b by default), about 20 s each. Needs what
# tools/device_test.sh needs, and CUDA's ncu, cuobjdump and nvdisasm. KEEP=FOLDER keeps what ncu wrote.
set -euo pipefail
if [[ -n ${KEEP:-} ]]; then
  mkdir -p "$KEEP"
  folder=$(cd "$KEEP" && pwd)
  rm -f "$folder"/*.cubin
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/local/cuda/bin" PYTHONUNBUFFERED=1
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}tests/device"
library=$(python3 -c 'import monomoe; print(monomoe.__path__[0])')/_monomoe.so
(cd "$folder" && cuobjdump -xelf all "$library" >/dev/null && nvdisasm -gi -c ./*.cubin >kernels.sass)
if (($# == 0)); then set -- dsv3-ep8 qwen3-30b; fi
for case in "$@"; do
  echo "== $case"
  timeout 120 ncu --clock-control none --profile-from-start off --section SourceCounters -f \
    -k regex:"forward_kernel|backward_kernel" -o "$folder/$case" \
    python3 tests/device/profiled.py "$case" >"$folder/$case.log" 2>&1 || {
    cat "$folder/$case.log"
    exit 1
  }
  ncu --import "$folder/$case.ncu-rep" --page source --csv --print-source sass >"$folder/$case.csv"
  python3 tools/profile_report.py "$folder/$case.csv" "$folder/kernels.sass"
done
