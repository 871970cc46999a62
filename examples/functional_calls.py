"""Without autograd: schedule once, forward and backward, gradients added to fp32 main_grads.

Four micro-batches are summed into one main_grad, the way a training framework does it. The calls
take plain tensors and are the same from C++ (examples/cpp).

    python examples/functional_calls.py
"""

import torch

import monomoe

torch.manual_seed(0)
tokens, hidden, inter, experts, top_k = 96, 64, 128, 8, 2


def weight(*shape: int) -> torch.Tensor:
    return (torch.randn(shape) / shape[-1] ** 0.5).bfloat16()


gate_up = weight(experts, 2, inter, hidden)
weights = monomoe.Weights(gate_up[:, 0], gate_up[:, 1], weight(experts, hidden, inter))
main_grads = weights.map(lambda w: torch.zeros(w.shape))  # fp32

with monomoe.Group() as group:
    for micro_batch in range(4):
        x, dy = weight(tokens, hidden), weight(tokens, hidden)
        topk_ids = torch.rand(tokens, experts).topk(top_k).indices
        topk_ids[::10, 1] = -1  # these tokens have one route only
        topk_weights = torch.rand(tokens, top_k)

        sched = monomoe.schedule(topk_ids, experts, group)
        config = monomoe.Config(save="none")  # recompute in backward instead of saving
        y, ctx = monomoe.forward(x, topk_weights, weights, sched, config, swiglu_limit=7.0)
        grads = monomoe.backward(dy, ctx, accumulate=main_grads)
        print(
            f"micro-batch {micro_batch}: "
            f"|y| {y.float().norm():.3f}, |dx| {grads.x.float().norm():.3f}, "
            f"router gradient of missing routes {grads.topk_weights[::10, 1].abs().max():.0f}, "
            f"|main_grad of down| {main_grads.down.norm():.3f}"
        )

print()
print(monomoe.explain(monomoe.Shape(tokens, hidden, inter, experts, top_k)), end="")
