#!/usr/bin/env bash
# Measures on a machine with a Hopper GPU: `tools/device_bench.sh [arguments of python -m monomoe bench]`.
# First the quickest device tests, then all cases; records are appended to bench/records.
#
# Needs torch and apache-tvm-ffi for its python3 (pytest for the tests), and the package, built there
# with nvcc 13 (`pip install .`) or carried there as PYTHONPATH. Of the packages that others made,
# what can be imported is measured too; tools/rivals.py carries them to a machine without network.
#
#   RIVALS=FOLDER   unpacks FOLDER/rivals.tar.xz first
#   CACHE=FOLDER    where rivals keep compiled kernels and what they tuned; default build/rivals-cache
#   SAVE=FILE       packs that folder there at the end (.tar.gz), to carry it back and forth
#   TESTS=0         leaves the tests out
set -euo pipefail
cd "$(dirname "$0")/.."
export CUDA_DEVICE_MAX_CONNECTIONS=32 PYTHONUNBUFFERED=1
cache=${CACHE:-$PWD/build/rivals-cache}
mkdir -p "$cache"/{quack,triton,inductor}
export QUACK_CACHE_DIR=$cache/quack TRITON_CACHE_DIR=$cache/triton TRITON_CACHE_AUTOTUNING=1
export TORCHINDUCTOR_CACHE_DIR=$cache/inductor QUACK_COMPILE_WORKERS=${QUACK_COMPILE_WORKERS:-1}
if [[ -n ${RIVALS:-} ]]; then
  site=$(mktemp -d)
  PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$(python3 tools/rivals.py unpack "$RIVALS" "$site")"
  export PYTHONPATH
fi
if [[ ${TESTS:-1} != 0 ]]; then
  timeout --foreground 120 python3 -m pytest -q -x -p no:cacheprovider -c /dev/null --rootdir=. tests/device \
    -k "cpu_backend or one_kernel"
fi
status=0
timeout --foreground 600 python3 -m monomoe bench "$@" || status=$?
if [[ -n ${SAVE:-} ]]; then tar czf "$SAVE" -C "$cache" quack triton inductor; fi
exit "$status"
