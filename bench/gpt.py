#!/usr/bin/env python3
"""examples/gpt beside PyTorch: the same model, weights, batches, AdamW, clipping and rate, f32, tokens (bytes) per second.

    gpt.py --gpt build/release/examples/gpt [--depth N] [--width N] [--heads N] [--context N] [--batch N] [--steps N] [--turns N]
           [--threads N] [--compile] [--json FILE] [FILE...]

`gpt train` makes its first step and saves; both go on from there. The losses of the next steps are compared. Then they take turns: `gpt train --resume`
and PyTorch, --steps steps each, of which the first does not count on either side (it compiles). Figures are medians over the turns; ratios are kiln's
rate over PyTorch's, turn by turn. PyTorch has its fused AdamW, attention and norm; with --compile, torch.compile as a third side. FILEs: the text,
without any the licences in /usr/share/common-licenses. Exit status: 0, 1 losses differ, 77 no PyTorch.
"""
import argparse
import json
import math
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

STEPS = 1000  # over which the rate falls
COMPARED = 5
WARMUP, RATE, DECAY, CLIP, SEED = 20, 0.002, 0.01, 1, 1  # as examples/gpt.c has them
MASK = (1 << 64) - 1


def read_safetensors(path, torch):
    with open(path, "rb") as f:
        data = f.read()
    n, = struct.unpack("<Q", data[:8])
    dtype = {"F32": torch.float32, "I64": torch.int64, "F64": torch.float64, "I32": torch.int32}
    tensors = {}
    for name, about in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            first, last = about["data_offsets"]
            tensors[name] = torch.frombuffer(bytearray(data[8 + n + first:8 + n + last]), dtype=dtype[about["dtype"]]).reshape(about["shape"])
    return tensors


def batch(text, step, args, torch):
    """The pieces of examples/gpt.c's make_batch."""
    state, rows, n = SEED << 32 | step, [], args.context + 1
    train = len(text) - len(text) // 10
    for _ in range(args.batch):
        state = (state + 0x9e3779b97f4a7c15) & MASK
        x = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9 & MASK
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb & MASK
        at = (x ^ (x >> 31)) % (train - n + 1)
        rows.append(list(text[at:at + n]))
    return torch.tensor(rows)


def rate_at(step):
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min((step - WARMUP) / (STEPS - WARMUP), 1))))


class Torch:
    """Goes on from a file of examples/gpt."""

    def __init__(self, torch, path, text, args, compiled):
        self.torch, self.text, self.args, self.step = torch, text, args, 1
        saved, F = read_safetensors(path, torch), torch.nn.functional
        names = ["embedding", "norm"] + [f"blocks.{b}.{p}" for b in range(args.depth) for p in ("norm1", "qkv", "out", "norm2", "up", "down")]
        self.params = [torch.nn.Parameter(saved[name]) for name in names]
        self.optimizer = torch.optim.AdamW(self.params, lr=RATE, betas=(0.9, 0.99), eps=1e-8, weight_decay=DECAY, fused=True)
        for i, p in enumerate(self.params):
            self.optimizer.state[p] = {"step": torch.tensor(1.0), "exp_avg": saved[f"m.{i}"], "exp_avg_sq": saved[f"v.{i}"]}
        width, heads, d = args.width, args.heads, args.width // args.heads
        angles = torch.outer(torch.arange(args.context, dtype=torch.float32), 10000 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d))
        cos, sin = angles.cos(), angles.sin()

        def turned(x):
            a, b = x.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        def loss(x, y, p):
            batch, n = x.shape
            h = p[0][x]
            for b in range(args.depth):
                norm1, qkv, out, norm2, up, down = p[2 + 6 * b:8 + 6 * b]
                q, k, v = (t.view(batch, n, heads, d).transpose(1, 2) for t in F.linear(F.rms_norm(h, (width,), norm1, 1e-5), qkv).split(width, -1))
                mixed = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
                h = h + F.linear(mixed.transpose(1, 2).reshape(batch, n, width), out)
                h = h + F.linear(F.gelu(F.linear(F.rms_norm(h, (width,), norm2, 1e-5), up), approximate="tanh"), down)
            return F.cross_entropy(F.linear(F.rms_norm(h, (width,), p[1], 1e-5), p[0]).flatten(0, 1), y.flatten())

        self.loss = torch.compile(loss) if compiled else loss

    def one(self):
        pieces = batch(self.text, self.step, self.args, self.torch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(self.step)
        loss = self.loss(pieces[:, :-1], pieces[:, 1:], self.params)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = self.torch.nn.utils.clip_grad_norm_(self.params, CLIP)
        self.optimizer.step()
        self.step += 1
        norm.item()
        return loss.item()

    def rate(self):
        self.one()
        start = time.perf_counter()
        for _ in range(self.args.steps):
            self.one()
        return self.args.steps * self.args.batch * self.args.context / (time.perf_counter() - start)


def gpt(args, *more):
    shape = [f"--{name}={getattr(args, name)}" for name in ("depth", "width", "heads", "context", "batch")]
    words = [word for option in shape for word in option.split("=")]
    return subprocess.run([args.gpt, "train", *args.text, *words, "--steps", str(STEPS), "--warmup", str(WARMUP), "--rate", str(RATE), *more],
                          check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"KILN_THREADS": str(args.threads)}).stdout


def licences():
    all = (os.path.join(folder, name) for folder, _, names in os.walk("/usr/share/common-licenses") for name in names)
    return sorted(path for path in all if not os.path.islink(path))


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("text", nargs="*", metavar="FILE")
    args.add_argument("--gpt", required=True)
    for name, usual in (("depth", 6), ("width", 384), ("heads", 6), ("context", 128), ("batch", 8), ("steps", 6), ("turns", 5)):
        args.add_argument("--" + name, type=int, default=usual)
    args.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args.add_argument("--compile", action="store_true")
    args.add_argument("--json")
    args = args.parse_args()
    os.environ.update({"OMP_NUM_THREADS": str(args.threads), "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"})
    try:
        import torch
    except ImportError:
        print("gpt.py: PyTorch is not there")
        return 77
    torch.set_num_threads(args.threads)
    args.text = args.text or licences()
    text = b"".join(open(path, "rb").read() for path in args.text)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        first, next_ = os.path.join(folder, "first"), os.path.join(folder, "next")
        gpt(args, "--stop", "1", "--save", first)
        gpt(args, "--resume", first, "--stop", str(1 + COMPARED), "--every", "1", "--save", next_)
        curve = read_safetensors(next_, torch)["curve"][1:, 1].tolist()
        sides = {name: Torch(torch, first, text, args, name == "compiled") for name in ["torch"] + ["compiled"] * args.compile}
        off = {}
        for name, side in sides.items():
            losses = [side.one() for _ in range(COMPARED)]
            off[name] = max(abs(a - b) / abs(a) for a, b in zip(curve, losses))
            bad += not off[name] < 1e-3
            print(f"losses of steps 2 to {1 + COMPARED}: kiln {' '.join(f'{x:.5f}' for x in curve)}, {name} {' '.join(f'{x:.5f}' for x in losses)}: "
                  f"{off[name]:.1e} apart{'' if off[name] < 1e-3 else ', WRONG'}", flush=True)
        rates = {name: [] for name in ["kiln", *sides]}
        for turn in range(args.turns):
            stop = str(2 + args.steps)
            said = gpt(args, "--resume", first, "--stop", stop, "--every", stop)
            rates["kiln"].append(float(re.search(r"; (\d+) bytes/s", said)[1]))
            for name, side in sides.items():
                rates[name].append(side.rate())
            print(f"turn {turn + 1}: " + ", ".join(f"{name} {all[-1]:.0f}" for name, all in rates.items()) + " bytes/s", flush=True)
    ratio = {name: [k / p for k, p in zip(rates["kiln"], rates[name])] for name in sides}
    for name, all in rates.items():
        print(f"{name}: {statistics.median(all):.0f} bytes/s" +
              (f"; kiln over it {statistics.median(ratio[name]):.2f}, from {min(ratio[name]):.2f} to {max(ratio[name]):.2f}" if name in ratio else ""))
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"rates": rates, "ratio": ratio, "off": off}, f, indent=1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
