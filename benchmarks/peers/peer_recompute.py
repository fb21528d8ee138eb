#!/usr/bin/env python3
"""A step whose blocks torch.utils.checkpoint (non-reentrant) recomputes in backward, and one that keeps their activations.

Reads "MODEL STEPS" lines (small, or stack: 12 blocks of Linear, GELU, Linear, LayerNorm) and answers each with a line of JSON: seconds of
STEPS steps of either kind, which took turns, and bytes that are held after forward beyond those of before it."""
from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import peer_common as pc


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(256, 1024), nn.Linear(1024, 256), nn.LayerNorm(256)

    def forward(self, x):
        return self.norm(self.down(nn.functional.gelu(self.up(x))))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(12)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def recompute(block: nn.Module) -> None:
    plain = block.forward
    block.forward = lambda *args: checkpoint(plain, *args, use_reentrant=False)


def task(name: str, recomputes: bool):
    """(the loss of one forward, what drops the gradients)."""
    torch.manual_seed(0)
    if name == "stack":
        model = Stack()
        blocks, x = model.layers, torch.randn(512, 256)
        loss = lambda: model(x).pow(2).sum()
    else:
        model, s = pc.build(name, 0)
        blocks = pc.blocks_of(model)
        x, y = pc.tokens(0, s.batch, s.seq, s.vocab, 0)
        loss = lambda: pc.loss_of(model, s, x, y)
    if recomputes:
        for block in blocks:
            recompute(block)
    return loss, lambda: model.zero_grad()


def bytes_after_forward(loss) -> int:
    audit = pc.MemAudit()
    audit.start()
    held = loss()
    result = audit.stop()["end_bytes"]
    del held
    return result


def timed(loss, forget_gradients) -> float:
    start = time.perf_counter()
    loss().backward()
    forget_gradients()
    return time.perf_counter() - start


def main() -> None:
    pc.quiet()
    torch.set_num_threads(1)
    for line in sys.stdin:
        name, steps = line.split()[0], int(line.split()[1])
        kept, again = task(name, False), task(name, True)
        kept_s, recomputed_s = [], []
        for _ in range(steps):
            kept_s.append(timed(*kept))
            recomputed_s.append(timed(*again))
        pc.emit({"model": name, "kept_bytes": bytes_after_forward(kept[0]), "recomputed_bytes": bytes_after_forward(again[0]), "kept_s": kept_s, "recomputed_s": recomputed_s})


if __name__ == "__main__":
    main()
