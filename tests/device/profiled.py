"""What tools/device_profile.sh runs under Nsight Compute: `profiled.py CASE`.

A case of docs/bench.md, forward and backward once, after some calls to warm up.
"""

import sys

import on_gpu  # noqa: F401: sets what must be set before CUDA starts
import torch

from monomoe.bench import cases, systems

layer = systems.MonoMoE(cases.make_inputs(cases.BY_NAME[sys.argv[1]], torch.device("cuda")))
for _ in range(3):
    layer.backward(layer.forward())
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
layer.backward(layer.forward())
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
layer.close()
