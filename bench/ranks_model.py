#!/usr/bin/env python3
"""What a training step takes on 8 to 1,024 GPUs, on paper: the tables of docs/ranks_model.md, which has the formulas and where they come from.

    ranks_model.py                 prints the tables
    ranks_model.py --check PAGE    are they what PAGE has? And the formulas, against rings that are walked step by step. Exit status 0, 1
    ranks_model.py --sent WAY BLOCKS WIDTH HIDDEN BATCH RANKS    bytes that a rank hands to collectives in a step of examples/parallel, by op

Seconds, bytes, bytes per second. Needs nothing but Python.
"""
import math
import sys

NODE = 8                             # GPUs that NVLink joins
PEAK, USED = 989e12, 0.40            # an H100 SXM's bf16 FLOP/s, dense; the part of it that products, attention and all between them reach
NEAR, NEAR_LATENCY = 370e9, 3.4e-6   # NVLink 4, a direction, as NCCL reaches it; a step of a ring
FAR, FAR_LATENCY = 47e9, 14e-6       # NDR InfiniBand, 400 Gbit/s for each GPU; a step of a ring
CALL = 8.4e-6                        # NCCL begins a collective
NOTE = 2e-6                          # kiln's check: one small message between hosts
BUCKETS = 32                         # messages of gradients, or layers whose parameters are gathered, in a step
MEMORY = 80e9                        # of an H100
WORD = 4                             # bytes of a parameter, a gradient, a moment: f32
GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)


class Model:
    def __init__(self, name, parameters, layers, width, tokens):
        self.name, self.parameters, self.layers, self.width, self.tokens = name, parameters, layers, width, tokens


MODELS = (Model("1.3 billion", 1.3e9, 24, 2048, 16384), Model("7 billion", 7e9, 32, 4096, 8192), Model("70 billion", 70e9, 80, 8192, 4096))


def half_ring(size, n, latency, bandwidth):
    """reduce_scatter of `size` bytes on each rank, or all_gather of `size` in all: n - 1 steps of a part."""
    return (n - 1) * (latency + size / n / bandwidth)


def scatter_or_gather(size, gpus):
    """Inside of a node over NVLink, where there are several; between nodes each GPU's part over its own link."""
    near, nodes = min(gpus, NODE), max(gpus // NODE, 1)
    return CALL + half_ring(size, near, NEAR_LATENCY, NEAR) + half_ring(size / near, nodes, FAR_LATENCY, FAR)


def all_reduce(size, gpus):
    return 2 * scatter_or_gather(size, gpus) - CALL


def check(gpus):
    """kiln's: a note in each of log2 rounds, beside the collective."""
    return math.ceil(math.log2(gpus)) * NOTE


def bucketed(collective, size, gpus):
    return BUCKETS * max(collective(size / BUCKETS, gpus), check(gpus))


def forward(model):
    """2 operations for each parameter and token forward; twice that backward. Whatever is shared: each GPU has its tokens' worth of work."""
    return 2 * model.parameters * model.tokens / (PEAK * USED)


class Step:
    """compute, sent (bytes that leave a GPU), alone (seconds of communication), hidden (at most so much of it), kept (bytes of memory)."""

    def __init__(self, compute, sent, alone, hidden, kept):
        self.compute, self.sent, self.alone, self.kept = compute, sent, alone, kept
        self.hidden = min(hidden, alone)

    def efficiency(self, overlap):
        return self.compute / (self.compute + self.alone - (self.hidden if overlap else 0))


def data(model, gpus):
    """One all_reduce of all gradients; all but the last bucket beside the backward pass."""
    size, f = WORD * model.parameters, forward(model)
    alone = bucketed(all_reduce, size, gpus)
    hidden = min(alone * (BUCKETS - 1) / BUCKETS, 2 * f)
    return Step(3 * f, 2 * size * (gpus - 1) / gpus, alone, hidden, 4 * size)


def shard(model, gpus, of_one=1):
    """Gathered forward and backward, gradients scattered; all but the first layer's gather and the last scatter beside the layers.
    of_one: GPUs that share a layer; each has its part of the parameters to begin with."""
    size, f = WORD * model.parameters / of_one, forward(model)
    ranks = gpus // of_one
    if of_one == NODE:  # all other GPUs of the group are in other nodes
        one = BUCKETS * max(CALL + half_ring(size / BUCKETS, ranks, FAR_LATENCY, FAR), check(ranks)) if ranks > 1 else 0
    else:
        one = bucketed(scatter_or_gather, size, ranks)
    hidden = min(one * (BUCKETS - 1) / BUCKETS, f) + min(2 * one * (BUCKETS - 1) / BUCKETS, 2 * f)
    whole = 2 * size / BUCKETS if ranks > 1 else 0  # a layer at work, the next one coming
    return Step(3 * f, 3 * size * (ranks - 1) / ranks, 3 * one, hidden, 4 * size / ranks + whole)


def tensor(model, gpus):
    """Layers shared by a node's GPUs, four all_reduces of activations in each, which nothing can hide; parameters in parts over the nodes."""
    step = shard(model, gpus, NODE)
    size = WORD * NODE * model.tokens * model.width
    step.alone += 4 * model.layers * all_reduce(size, NODE)
    step.sent += 4 * model.layers * 2 * size * (NODE - 1) / NODE
    return step


WAYS = (("data", data), ("shard", shard), ("tensor 8, shard", tensor))


def table(model):
    yield f"### {model.name} parameters, {model.tokens:,} tokens for each GPU: {3 * forward(model):.2f} s of computing"
    yield ""
    yield "| GPUs |" + "".join(f" {name}: GB kept | GB sent | s | efficiency |" for name, _ in WAYS)
    yield "| ---: |" + " ---: | ---: | ---: | --- |" * len(WAYS)
    for gpus in GPUS:
        steps = [way(model, gpus) for _, way in WAYS]
        yield f"| {gpus:,} |" + "".join(f" {s.kept / 1e9:,.1f}{' (!)' if s.kept > MEMORY else ''} | {s.sent / 1e9:,.1f} | {s.alone:.3f} | "
                                        f"{s.efficiency(False):.2f}, {s.efficiency(True):.2f} |" for s in steps)
    yield ""


def messages():
    yield "| bytes | " + " | ".join(f"{n:,} GPUs" for n in GPUS) + " |"
    yield "| ---: |" + " ---: |" * len(GPUS)
    for size in (8, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 32):
        yield f"| {size:,} | " + " | ".join(f"{1e6 * max(all_reduce(size, n), check(n)):,.0f} us" for n in GPUS) + " |"
    yield ""


def tables():
    yield "### One all_reduce"
    yield ""
    yield from messages()
    for model in MODELS:
        yield from table(model)


def sent(way, blocks, width, hidden, batch, ranks):
    """Of examples/parallel: {op: bytes of the operand on a rank}, of f32, in a step."""
    part = lambda n: -(-n // ranks)
    matrix, loss = width * hidden, 1
    if way == "data":
        return {"all_reduce": WORD * (blocks * (2 * matrix + width) + loss)}
    if way == "shard":
        gathered = 2 * 2 * part(matrix) + part(width)  # twice each, but for the scale
        return {"all_gather": WORD * blocks * gathered, "reduce_scatter": WORD * blocks * ranks * (2 * matrix // ranks + part(width)),
                "all_reduce": WORD * loss}
    return {"all_reduce": WORD * blocks * 2 * batch * width}


def walk_ring(n):
    """An all_reduce of n parts on n ranks, a part at a time to the next one. Steps; parts that each rank sent; has each all of it?"""
    has = [[{rank} for _ in range(n)] for rank in range(n)]
    steps, sent_parts = 0, [0] * n
    for phase in range(2):
        for step in range(n - 1):
            moves = [((rank - step + phase) % n, rank, (rank + 1) % n) for rank in range(n)]
            taken = [set(has[rank][at]) for at, rank, _ in moves]
            for (at, rank, to), parts in zip(moves, taken):
                has[to][at] = has[to][at] | parts
                sent_parts[rank] += 1
            steps += 1
    return steps, sent_parts, all(has[rank][at] == set(range(n)) for rank in range(n) for at in range(n))


def check_formulas():
    for n in (2, 3, 4, 7, 8):
        steps, parts, whole = walk_ring(n)
        assert whole and steps == 2 * (n - 1) and set(parts) == {2 * (n - 1)}, n
        assert math.isclose(2 * half_ring(1e6, n, 3.0, 5e5), steps * 3.0 + parts[0] * 1e6 / n / 5e5), n
    for model in MODELS:
        for gpus in GPUS:
            for _, way in WAYS:
                s = way(model, gpus)
                assert 0 <= s.hidden <= s.alone and 0 < s.efficiency(False) <= s.efficiency(True) <= 1, (model.name, gpus)
        assert math.isclose(shard(model, 1024).sent / data(model, 1024).sent, 1.5)  # ZeRO's stage 3
        assert data(model, 8).kept == 4 * WORD * model.parameters


def main():
    if sys.argv[1:2] == ["--sent"]:
        for op, size in sorted(sent(sys.argv[2], *map(int, sys.argv[3:8])).items()):
            print(op, size)
        return 0
    made = "\n".join(tables())
    if sys.argv[1:2] != ["--check"]:
        print(made)
        return 0
    check_formulas()
    with open(sys.argv[2], encoding="utf-8") as page:
        if made.strip() not in page.read():
            print(f"{sys.argv[2]} has other tables than bench/ranks_model.py makes:\n{made}")
            return 1
    return 0


sys.exit(main())
