#!/usr/bin/env bash
# Runs the device tests on a machine with a Hopper GPU: `tools/device_test.sh [pytest arguments]`.
# Needs torch, pytest and apache-tvm-ffi for its python3, and the package, built there with nvcc 13
# (`pip install .`) or carried there as PYTHONPATH.
set -euo pipefail
cd "$(dirname "$0")/.."
export CUDA_DEVICE_MAX_CONNECTIONS=32 PYTHONUNBUFFERED=1
timeout 540 python3 -m pytest -q -p no:cacheprovider -c /dev/null --rootdir=. tests/device "$@"
