#!/usr/bin/env bash
# Builds what a Hopper machine without network needs, to be carried there: `tools/device_package.sh
# [CMake options]`. Then, there:
#
#   python3 -m pip install -q --no-index --no-deps --target /tmp/site build/device/wheels/*.whl
#   PYTHONPATH=build/device/site:/tmp/site tools/device_test.sh
#
# Needs nvcc 13, and for PYTHON (default python3) cmake, ninja and apache-tvm-ffi.
#   WHEELS_FOR=3.12   the Python of that machine
#   -DCMAKE_CUDA_FLAGS=-DMONOMOE_ROLE_CLOCKS -DCMAKE_CXX_FLAGS=-DMONOMOE_ROLE_CLOCKS   clocks in every role
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
version=${WHEELS_FOR:-3.12}
build=build/device
"$python" -m cmake --version >/dev/null 2>&1 && cmake=("$python" -m cmake) || cmake=(cmake)
PATH="$(dirname "$(command -v "$python")"):$PATH" "${cmake[@]}" -G Ninja -S . -B $build/objects \
  -DCMAKE_BUILD_TYPE=Release -DMONOMOE_PYTHON=ON -DMONOMOE_CUDA=ON \
  -DPython_EXECUTABLE="$(command -v "$python")" \
  -DCMAKE_MODULE_LINKER_FLAGS="-static-libstdc++ -static-libgcc" "$@"
PATH="$(dirname "$(command -v "$python")"):$PATH" "${cmake[@]}" --build $build/objects --target _monomoe
rm -rf $build/site
mkdir -p $build/site $build/wheels
cp -r python/monomoe $build/site/
find $build/site -name __pycache__ -prune -exec rm -rf {} +
cp $build/objects/_monomoe.so $build/site/monomoe/
if ! compgen -G "$build/wheels/apache_tvm_ffi-*" >/dev/null; then
  "$python" -m pip download -q -d $build/wheels --no-deps --only-binary=:all: \
    --python-version "${version}" --implementation cp --abi "cp${version/./}" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 apache-tvm-ffi
  "$python" -m pip download -q -d $build/wheels --no-deps pytest pluggy iniconfig packaging pygments
fi
du -sh $build/site $build/wheels
