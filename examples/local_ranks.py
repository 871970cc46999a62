"""The same bits for any number of ranks, whatever the tokens of each rank and the knobs.

A local group holds R virtual ranks in this process. The layer's output and gradients are compared,
bit for bit, with those of one rank. (Gradients of a shared expert are sums over a rank's own
tokens; across numbers of ranks they agree by an error rule only, so this example has none.)

    python examples/local_ranks.py
"""

import torch

import monomoe
from monomoe import testing

torch.manual_seed(0)
tokens, hidden, inter, experts, top_k = 100, 64, 72, 6, 2

x = torch.randn(tokens, hidden).bfloat16()
dy = torch.randn(tokens, hidden).bfloat16()
route = torch.randn(tokens, experts).softmax(-1).topk(top_k)
gate_up = (torch.randn(experts, 2, inter, hidden) / hidden**0.5).bfloat16()
down = (torch.randn(experts, hidden, inter) / inter**0.5).bfloat16()
weights = monomoe.Weights(gate_up[:, 0], gate_up[:, 1], down)


def bits(ranks: int, tokens_per_rank=None, **knobs) -> str:
    """Hash over y and all gradients."""
    with monomoe.Group.local(ranks) as group:
        sched = monomoe.schedule(route.indices, experts, group, tokens_per_rank)
        y, ctx = monomoe.forward(x, route.values, weights, sched, monomoe.Config(**knobs))
        return testing.hash_bits(testing.named(y, monomoe.backward(dy, ctx)).values())


runs = {
    "1 rank": bits(1),
    "2 ranks": bits(2),
    "3 ranks, 6 experts": bits(3),
    "4 ranks, experts don't divide": bits(4),
    "8 ranks, more than experts": bits(8),
    "3 ranks, one without tokens": bits(3, tokens_per_rank=[70, 0, 30]),
    "2 ranks, recompute, small ring": bits(2, save="none", ring_rows=256, workers=1),
}
for name, value in runs.items():
    print(f"{value}  {name}")
assert len(set(runs.values())) == 1, "these bits must not differ"
print("all the same")
