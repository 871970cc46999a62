"""The smallest training step: a router, a mixture-of-experts layer, an optimizer.

python examples/first_layer.py
"""

import torch

import monomoe

torch.manual_seed(0)
torch.set_num_threads(1)  # on a CPU torch's idle threads would spin on the cores the layer needs
tokens, hidden, experts, top_k = 256, 64, 8, 2

router = torch.nn.Linear(hidden, experts, bias=False)
layer = monomoe.MoELayer(hidden, intermediate=128, experts=experts, top_k=top_k, shared=64)
optimizer = torch.optim.Adam([*router.parameters(), *layer.parameters()], lr=3e-3)

x = torch.randn(tokens, hidden)
target = torch.roll(x, 1, dims=1).tanh()

for step in range(101):
    route = router(x).softmax(-1).topk(top_k)
    y = layer(x.bfloat16(), route.indices, route.values)  # [T, H] bf16
    loss = (y.float() - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        load = torch.bincount(route.indices.flatten(), minlength=experts).tolist()
        print(f"step {step:3}  loss {loss.item():.2e}  tokens of each expert {load}")
