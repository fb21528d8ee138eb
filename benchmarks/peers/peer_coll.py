#!/usr/bin/env python3
"""Bandwidth and latency of the bare collectives the strategies are made of (Gloo on localhost).

For each kind and size: seconds per call (slowest rank), algorithm bandwidth = bytes / time,
and bus bandwidth under the usual factors: all_reduce 2(n-1)/n, all_gather and
reduce_scatter (n-1)/n, broadcast 1.  "bytes" follows FORMAT.md (gathered output,
unreduced input).  A strategy's exposed communication share is judged against these.

Example
  peer_coll.py --world 2 --sizes 1024 1048576 16777216
"""
from __future__ import annotations

import argparse
import os
import statistics as st
import time

import torch
import torch.distributed as dist

import peer_common as pc


# Bytes on the bus over bytes of the call, by the number of ranks.
KINDS = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n, "reduce_scatter": lambda n: (n - 1) / n,
         "broadcast": lambda n: 1.0, "gather": lambda n: (n - 1) / n, "scatter": lambda n: (n - 1) / n, "all_to_all": lambda n: (n - 1) / n,
         "send_receive": lambda n: 1.0}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--world", type=int, default=2)
    p.add_argument("--sizes", type=int, nargs="+", default=[1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26])
    p.add_argument("--repeats", type=int, default=15)
    p.add_argument("--kinds", nargs="+", default=list(KINDS))
    return p


def body(rank: int, world: int, a) -> list[dict]:
    pc.quiet()
    dist.init_process_group("gloo", rank=rank, world_size=world,
                            init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}")
    out = []
    for size in a.sizes:
        n = max(1, size // 4 // world) * world
        whole, part, other = torch.ones(n), torch.ones(n // world), torch.ones(n)
        call = {"all_reduce": lambda: dist.all_reduce(whole),
                "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
                "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
                "broadcast": lambda: dist.broadcast(whole, 0),
                "gather": lambda: dist.gather(part, list(whole.chunk(world)) if rank == 0 else None, 0),
                "scatter": lambda: dist.scatter(part, list(whole.chunk(world)) if rank == 0 else None, 0),
                "all_to_all": lambda: dist.all_to_all_single(other, whole),
                "send_receive": lambda: (dist.send(whole, 1) if rank == 0 else dist.recv(whole, 0) if rank == 1 else None)}
        for kind in a.kinds:
            ts = []
            for k in range(a.repeats + 3):
                dist.barrier()
                t0 = time.perf_counter()
                call[kind]()
                t = torch.tensor([time.perf_counter() - t0], dtype=torch.float64)
                dist.all_reduce(t, op=dist.ReduceOp.MAX)
                if k >= 3:
                    ts.append(float(t))
            whole.fill_(1.0)
            m = min(ts)
            out.append({"type": "collective", "kind": kind, "world": world, "bytes": n * 4, "min_s": m,
                        "median_s": st.median(ts), "alg_MBps": n * 4 / m / 1e6, "bus_MBps": n * 4 / m / 1e6 * KINDS[kind](world)})
    return out


def main() -> None:
    a = parser().parse_args()
    for row in pc.spawn(body, a.world, a)[0]:
        pc.emit(row)


if __name__ == "__main__":
    main()
