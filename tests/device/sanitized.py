"""What tools/device_sanitize.sh runs under compute-sanitizer: `sanitized.py RANKS`.

Small shapes that reach every role, every epilogue of both passes, rings that are reused, sums that
spill, and every kind of wait.
"""

import sys

import on_gpu  # noqa: F401: sets what must be set before CUDA starts
import torch

from monomoe import Config, Group, reference, testing
from monomoe.testing import Case

CASES = [
    Case(33, 64, 40, 5, 2, routing="unrouted", shared=24, score=True),
    Case(500, 72, 136, 2, 2, limit=0.5,
         config=Config(ring_rows=256, minibatch_rows=128, workers=3, save_rows=128)),
    Case(150, 64, 64, 9, 3, shared=40, config=Config(save="all", workers=2, fwd_comm_sms=1)),
]  # fmt: skip

for case in CASES:
    inputs = testing.make_inputs(case)
    results = []
    with Group.local(int(sys.argv[1]), timeout_s=60) as group:
        for _ in range(2):
            got = testing.run_layer(inputs.to("cuda"), group, case)
            torch.cuda.synchronize()
            group.check()
            results.append({name: t.cpu() for name, t in got.items()})
    testing.assert_same_bits(*results)
    testing.assert_close(
        results[0],
        testing.run_reference(inputs, case, reference.TWIN),
        testing.run_reference(inputs, case, reference.EXACT),
    )
print(f"results are right with {sys.argv[1]} ranks")
