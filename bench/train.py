#!/usr/bin/env python3
"""A training step of kiln beside PyTorch (eager, and torch.compile where it works) and jax.jit, those that are there: time, ratio, memory.

    train.py --lib build/release/bench/libbench_train.so [--seconds S] [--threads N] [--compile] [--remat auto,off,memory] [--json FILE]

The steps are those of bench/train.c: the same parameters, inputs, AdamW, in f32; a row for each KILN_REMAT. Sides take turns in one process; figures
are medians over the turns, ratios the other's time over kiln's, turn by turn. Losses of the first steps are compared. Memory is the most
that a process of its own held resident in steps 3 to 5, less what it held before the model was made. Exit status: 0, 1 losses
differ, 77 neither PyTorch nor JAX is there.
"""
import argparse
import ctypes
import math
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peers import arguments, finish, options, turns  # noqa: E402

WORKLOADS = ("mlp", "block")


class Kiln:
    def __init__(self, path, threads):
        os.environ.setdefault("KILN_THREADS", str(threads))
        self.lib = ctypes.CDLL(os.path.abspath(path))
        self.lib.train_open.restype = ctypes.c_void_p
        self.lib.train_step.restype = ctypes.c_double

    def remat(self, how):
        if self.lib.train_option(b"remat", how.encode()):
            sys.exit(f"train.py: kiln knows no remat={how}")

    def open(self, name):
        self.model = ctypes.c_void_p(self.lib.train_open(name.encode()))

    def step(self):
        return self.lib.train_step(self.model)

    def arrays(self, np):
        """Parameters, then inputs."""
        all, dims = [], (ctypes.c_int64 * 8)()
        while (rank := self.lib.train_read(self.model, len(all), dims, None)) >= 0:
            shape = tuple(dims[:rank])
            data = np.empty(shape, dtype=np.float32)
            if len(all) == 7 and rank == 1 and shape == (128,):  # labels
                data = np.empty(shape, dtype=np.int64)
            self.lib.train_read(self.model, len(all), dims, ctypes.c_void_p(data.ctypes.data))
            all.append(data)
        return all


def torch_step(torch, name, arrays, compiled):
    F = torch.nn.functional
    params = [torch.nn.Parameter(torch.from_numpy(a.copy())) for a in arrays[:-2]]
    inputs = [torch.from_numpy(a) for a in arrays[-2:]]

    def mlp(x, y, p):
        x = F.relu(F.linear(x, p[0], p[1]))
        x = F.relu(F.linear(x, p[2], p[3]))
        return F.cross_entropy(F.linear(x, p[4], p[5]), y)

    def block(x, y, p):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, 4, d // 4).transpose(1, 2) for t in F.linear(F.layer_norm(x, (d,), p[0], p[1]), p[2], p[3]).split(d, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // 4)
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, s, d)
        x = x + F.linear(mixed, p[4], p[5])
        x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (d,), p[6], p[7]), p[8], p[9])), p[10], p[11])
        return F.mse_loss(x, y)

    forward = {"mlp": mlp, "block": block}[name]
    if compiled:
        forward = torch.compile(forward)
    optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01)

    def step():
        loss = forward(*inputs, params)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def jax_step(jax, name, arrays):
    """Loss, gradients and AdamW in one jitted function, which may overwrite parameters and state."""
    jnp, nn = jax.numpy, jax.nn

    def linear(x, w, b):
        return x @ w.T + b

    def norm(x, w, b):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b

    def mlp(p, x, y):
        x = nn.relu(linear(x, p[0], p[1]))
        x = nn.relu(linear(x, p[2], p[3]))
        log = nn.log_softmax(linear(x, p[4], p[5]))
        return -jnp.take_along_axis(log, y[:, None], 1).mean()

    def block(p, x, y):
        b, s, d = x.shape
        parts = jnp.split(linear(norm(x, p[0], p[1]), p[2], p[3]), 3, -1)
        q, k, v = (t.reshape(b, s, 4, d // 4).transpose(0, 2, 1, 3) for t in parts)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(d // 4)
        mixed = (nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b, s, d)
        x = x + linear(mixed, p[4], p[5])
        x = x + linear(nn.gelu(linear(norm(x, p[6], p[7]), p[8], p[9]), approximate=False), p[10], p[11])
        return ((x - y) ** 2).mean()

    def update(p, m, v, t, x, y):
        loss, g = jax.value_and_grad({"mlp": mlp, "block": block}[name])(p, x, y)
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g)]
        v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g)]
        c, e = 1 - 0.9 ** t, 1 - 0.999 ** t
        p = [a * (1 - 1e-3 * 0.01) - 1e-3 * (b / c) / (jnp.sqrt(d / e) + 1e-8) for a, b, d in zip(p, m, v)]
        return loss, p, m, v, t + 1

    jitted = jax.jit(update, donate_argnums=(0, 1, 2, 3))
    p = [jnp.array(a) for a in arrays[:-2]]
    inputs = [jnp.array(a) for a in arrays[-2:]]
    state = [p, [jnp.zeros_like(a) for a in p], [jnp.zeros_like(a) for a in p], jnp.float32(1)]

    def step():
        loss, *state[:] = jitted(*state, *inputs)
        return float(loss)

    return step


def peer_step(side, name, arrays):
    if side == "jax":
        import jax
        return jax_step(jax, name, arrays)
    import torch
    return torch_step(torch, name, arrays, side == "compiled")


def resident(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":"))


def memory(side, name, args):
    """Run in a process of its own: prints the bytes."""
    import numpy as np
    if side == "jax":
        import jax  # noqa: F401
    elif side != "kiln":
        import torch
        torch.set_num_threads(args.threads)
    kiln = Kiln(args.lib, args.threads)
    kiln.remat(args.remat)
    kiln.open(name)
    arrays = kiln.arrays(np)
    if side == "kiln":
        kiln.lib.train_close(kiln.model)
        before = resident("VmRSS")
        kiln.open(name)
        step = kiln.step
    else:
        kiln.lib.train_close(kiln.model)
        before = resident("VmRSS")
        step = peer_step(side, name, arrays)
    step()
    step()
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # VmHWM begins anew
    for _ in range(3):
        step()
    print(resident("VmHWM") - before)


def peers(args):
    """The other sides that can be had."""
    there = []
    try:
        import numpy  # noqa: F401
    except ImportError:
        return there
    try:
        import torch
        torch.set_num_threads(args.threads)
        there += ["torch"] + ["compiled"] * args.compile
    except ImportError:
        pass
    try:
        import jax  # noqa: F401
        there.append("jax")
    except ImportError:
        pass
    return there


def main():
    parser = options(__doc__, 5, isa=False)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--remat", default="auto,off,memory")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    args = arguments(parser)
    os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen={str(args.threads > 1).lower()} intra_op_parallelism_threads={args.threads}")
    if args.memory_of:
        return memory(*args.memory_of, args)
    there = peers(args)
    if not there:
        print("train.py: neither PyTorch nor JAX is there, or no NumPy")
        return 77
    import numpy as np
    kiln, bad, table = Kiln(args.lib, args.threads), 0, []
    for name, remat in [(name, remat) for name in WORKLOADS for remat in args.remat.split(",")]:
        kiln.remat(remat)
        kiln.open(name)
        arrays = kiln.arrays(np)
        sides = {"kiln": kiln.step} | {side: peer_step(side, name, arrays) for side in there}
        losses = {side: [step() for _ in range(5)] for side, step in sides.items()}
        off = max(abs(a - b) / abs(a) for other in losses.values() for a, b in zip(losses["kiln"], other))
        wrong = not off < 1e-3
        bad += wrong
        seconds, ratio = turns(sides, args.seconds)
        room = {side: int(subprocess.run([sys.executable, __file__, "--lib", args.lib, "--threads", str(args.threads), "--remat", remat,
                                          "--memory-of", side, name], check=True, capture_output=True, text=True).stdout) for side in sides}
        table.append({"row": f"{name} {remat}", "seconds": seconds, "ratio": ratio, "bytes": room, "off": off})
        print(f"{name + ' ' + remat:14}" + "".join(f"  {side} {seconds[side] * 1e3:.2f} ms, {room[side] / 1e6:.0f} MB" +
                                    (f", {ratio[side]:.2f} of kiln's time" if side in ratio else "") for side in sides) +
              f"  (losses differ by {off:.1e}{', WRONG' if wrong else ''})", flush=True)
        kiln.lib.train_close(kiln.model)
    return finish(args, table, bad)


if __name__ == "__main__":
    sys.exit(main())
