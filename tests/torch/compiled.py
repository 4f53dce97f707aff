"""torch.compile, as a program: `compiled.py plain` or `compiled.py LIMIT` prints JSON with the exact losses and a digest of all weights."""
import json
import sys

import torch
import torch._inductor.config
from torch import nn

import scenarios


class Net(nn.Module):
    """Kernels that inductor writes and ops that it calls, with a constant and a saved activation that can move."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(256, 512), nn.LayerNorm(512), nn.Linear(512, 256)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 512 * 512).view(512, 512))

    def forward(self, x):
        return self.last(self.norm(nn.functional.gelu(self.first(x))) * self.scale)


def main(mode):
    torch.set_num_threads(1)
    torch._inductor.config.cpp_cache_precompile_headers = False  # this, and looking for vector instructions, takes longer than the rest
    torch._inductor.config.cpp.vec_isa_ok = False
    if mode != "plain":
        import headroom.torch as plugin
        plugin.install(limit=mode, lms=True, device="cpu", movable="64KiB", verify=True)
    torch.manual_seed(7)
    model = Net()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(6):
        inputs = torch.randn(512, 256)
        losses.append(scenarios.train(optimizer, (compiled(inputs) - inputs).square().mean()).item().hex())
    result = {"losses": losses, "digest": scenarios.digest(model), "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
              "breaks": dict(torch._dynamo.utils.counters["graph_break"])}
    if mode != "plain":
        plugin.check()
        result["lms"] = plugin.lms_stats()
        result["pinned"] = plugin._plugin.headroom_torch_pinned_records()
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
