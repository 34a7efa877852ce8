#!/usr/bin/env python3
"""Programs of a few ops: kiln beside NumPy, PyTorch (eager and torch.compile) and jax.jit, those that are there, in one process.

    programs.py --lib build/release/bench/libbench_programs.so [--isa avx2] [--seconds S] [--threads N] [--no-compile] [--json FILE] [NAME...]

The programs are those of bench/programs.c with the same inputs; NAMEs choose those whose name has one of them. A call of kiln's is that of a
kiln_function; torch.compile and jax.jit have compiled for these shapes before a clock starts. Sides take turns; figures are medians over
the turns, ratios the other's time over kiln's, turn by turn; the last column is the best peer's, and kiln's own with math=strict. Results are
compared with PyTorch's. --isa avx2 keeps everybody to AVX2, without JAX, whose products take no notice of that. Exit status: 0, 1 results differ, 77 no PyTorch.
"""
import ctypes
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peers import arguments, finish, options, turns  # noqa: E402

TOLERANCE = {"f": 2e-4, "i": 0}  # of the largest value


class Kiln:
    def __init__(self, path, threads):
        os.environ.setdefault("KILN_THREADS", str(threads))
        os.environ.setdefault("KILN_DYNAMIC", "never")  # each row is a program of its own, as in a process that runs it alone
        self.lib = ctypes.CDLL(os.path.abspath(path))
        self.lib.programs_open.restype = ctypes.c_void_p
        self.lib.programs_name.restype = ctypes.c_char_p
        self.math = None

    def names(self):
        i = 0
        while name := self.lib.programs_name(i):
            yield i, name.decode()
            i += 1

    def open(self, i):
        return ctypes.c_void_p(self.lib.programs_open(i))

    def call(self, run, math=b"fast"):
        """The option counts when a function is called, not when it is made."""
        if self.math != math:
            if self.lib.programs_option(b"math", math):
                sys.exit(f"programs.py: kiln knows no math={math.decode()}")
            self.math = math
        self.lib.programs_call(run)

    def array(self, np, run, i):
        dims, dtype = (ctypes.c_int64 * 8)(), ctypes.c_int()
        rank = self.lib.programs_read(run, i, dims, ctypes.byref(dtype), None)
        if rank < 0:
            return None
        data = np.empty(tuple(dims[:rank]), dtype={1: np.int8, 4: np.int64, 11: np.float32}[dtype.value])
        self.lib.programs_read(run, i, dims, ctypes.byref(dtype), ctypes.c_void_p(data.ctypes.data))
        return data


def torch_function(torch, name):
    F = torch.nn.functional

    def transformer(x, n1, b1, w_in, b_in, w_out, b_out, n2, b2, w_up, b_up, w_down, b_down):
        b, s, d = x.shape
        parts = F.linear(F.layer_norm(x, (d,), n1, b1), w_in, b_in).split(d, -1)
        q, k, v = (t.view(b, s, 8, d // 8).transpose(1, 2) for t in parts)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, d)
        x = x + F.linear(mixed, w_out, b_out)
        return x + F.linear(F.gelu(F.linear(F.layer_norm(x, (d,), n2, b2), w_up, b_up)), w_down, b_down)

    def resnet(x, *p):
        y = F.relu(F.batch_norm(F.conv2d(x, p[0], padding=1), p[3], p[4], p[1], p[2]))
        return F.relu(F.batch_norm(F.conv2d(y, p[5], padding=1), p[8], p[9], p[6], p[7]) + x)

    def gelu(x, w, b):
        return F.gelu(F.linear(x, w, b)) + x

    def shifted(x, w):
        rows, columns = x.shape[0] - 2, x.shape[1] - 2
        return sum(x[k // 3:k // 3 + rows, k % 3:k % 3 + columns].reshape(rows * columns, -1) @ w[k // 3, k % 3] for k in range(9))

    def rotated(x, angles):
        low, high = x.chunk(2, -1)
        return x * angles.cos().repeat(1, 2) + torch.cat((-high, low), -1) * angles.sin().repeat(1, 2)

    def rotary(q, k, v, angles):
        return F.scaled_dot_product_attention(rotated(q, angles), rotated(k, angles), v, is_causal=True)

    def alibi(q, k, v, slopes):
        place = torch.arange(q.shape[2], dtype=torch.float32)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(slopes[:, None, None] * (place - place[:, None]))[None])

    norm = {"layer": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), "RMS": lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5)}
    of = {
        "linear, GELU, residual, norm": lambda x, w, b, n, m: F.layer_norm(gelu(x, w, b), x.shape[-1:], n, m),
        "linear, GELU, residual": gelu,
        "i8 weights": lambda x, w, s: x @ (w.float() * s[:, None]).T,
        "q, k, v": lambda x, *p: tuple(F.linear(x, p[k], p[3 + k]) for k in range(3)),
        "two layers": lambda x, w, v: F.relu(x @ w) @ v,
        "(a)": lambda x, y: F.relu((torch.sin(x) * torch.cos(y) + x) * y),
        "(b)": lambda x: (torch.tanh(0.1 * x + 1.7) * torch.sigmoid(x) + torch.exp(-x * x)).sum(),
        "(e)": lambda x: torch.sigmoid(F.relu(2 * x + 1) * 0.5),
        "where": lambda x: torch.where(x > 1, x.log(), x.sqrt()),
        "pow": torch.pow,
        "softmax": lambda x: torch.softmax(x, -1),
        "layer norm": norm["layer"],
        "RMS norm": norm["RMS"],
        "logsumexp": lambda x: torch.logsumexp(x, 1),
        "sum of all": lambda x: x.sum(),
        "sum of rows": lambda x: x.sum(1),
        "sum of columns": lambda x: x.sum(0),
        "max of all": lambda x: x.max(),
        "argmax of rows": lambda x: x.argmax(1),
        "argmax of columns": lambda x: x.argmax(0),
        "variance": lambda x: x.var(0, correction=0),
        "pairwise": torch.cdist,
        "cumsum of rows": lambda x: x.cumsum(-1),
        "cumsum of columns": lambda x: x.cumsum(0),
        "cumsum of a line": lambda x: x.cumsum(-1),
        "transpose 4096": lambda x: x.T.contiguous(),
        "0 2 1 3": lambda x: x.permute(0, 2, 1, 3).contiguous(),
        "0 2 3 1": lambda x: x.permute(0, 2, 3, 1).contiguous(),
        "8192 rows": lambda x, i: F.embedding(i, x),
        "scatter-add": lambda x, i, s: x.index_add(0, i, s),
        "eight of": lambda *x: torch.cat(x, 1),
        "every other": lambda x: x[::2, ::2].contiguous(),
        "five-point": lambda x: x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1],
        "nine shifted": shifted,
        "rotary": rotary,
        "ALiBi": alibi,
        "transformer": transformer,
        "ResNet": resnet,
    }
    return next(f for start, f in of.items() if name.startswith(start))


def numpy_function(np, name):
    """Where one call of NumPy does it."""
    of = {
        "sum of all": lambda x: x.sum(), "sum of rows": lambda x: x.sum(1), "sum of columns": lambda x: x.sum(0), "max of all": lambda x: x.max(),
        "argmax of rows": lambda x: x.argmax(1), "argmax of columns": lambda x: x.argmax(0), "variance": lambda x: x.var(0),
        "cumsum of rows": lambda x: x.cumsum(-1), "cumsum of columns": lambda x: x.cumsum(0), "cumsum of a line": lambda x: x.cumsum(-1),
        "transpose 4096": lambda x: np.ascontiguousarray(x.T), "0 2 1 3": lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)),
        "0 2 3 1": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)),
        "8192 rows": lambda x, i: x.take(i, 0), "eight of": lambda *x: np.concatenate(x, 1), "pow": np.power,
        "every other": lambda x: np.ascontiguousarray(x[::2, ::2]), "two layers": lambda x, w, v: np.maximum(x @ w, 0) @ v,
    }
    return next((f for start, f in of.items() if name.startswith(start)), None)


def jax_function(jax, name):
    np, nn, lax = jax.numpy, jax.nn, jax.lax

    def norm(x, w, b):
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w + b

    def linear(x, w, b):
        return x @ w.T + b

    def gelu(x, w, b):
        return nn.gelu(linear(x, w, b), approximate=False) + x

    def transformer(x, n1, b1, w_in, b_in, w_out, b_out, n2, b2, w_up, b_up, w_down, b_down):
        b, s, d = x.shape
        q, k, v = (t.reshape(b, s, 8, d // 8).transpose(0, 2, 1, 3) for t in np.split(linear(norm(x, n1, b1), w_in, b_in), 3, -1))
        scores = q @ k.swapaxes(-1, -2) / (d // 8) ** 0.5
        x = x + linear((nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b, s, d), w_out, b_out)
        return x + linear(nn.gelu(linear(norm(x, n2, b2), w_up, b_up), approximate=False), w_down, b_down)

    def batch_norm(x, w, b, mean, var):
        scale = (w * lax.rsqrt(var + 1e-5))[:, None, None]
        return x * scale + (b[:, None, None] - mean[:, None, None] * scale)

    def resnet(x, *p):
        y = nn.relu(batch_norm(lax.conv(x, p[0], (1, 1), "SAME"), *p[1:5]))
        return nn.relu(batch_norm(lax.conv(y, p[5], (1, 1), "SAME"), *p[6:10]) + x)

    def rotated(x, angles):
        low, high = np.split(x, 2, -1)
        return x * np.tile(np.cos(angles), (1, 2)) + np.concatenate((-high, low), -1) * np.tile(np.sin(angles), (1, 2))

    def attended(q, k, v, bias):
        return nn.softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5 + bias, -1) @ v

    def rotary(q, k, v, angles):
        return attended(rotated(q, angles), rotated(k, angles), v, np.where(np.tri(q.shape[2], dtype=bool), 0, -np.inf))

    def alibi(q, k, v, slopes):
        place = np.arange(q.shape[2], dtype=np.float32)
        return attended(q, k, v, slopes[:, None, None] * (place - place[:, None]))

    of = {
        "linear, GELU, residual, norm": lambda x, w, b, n, m: norm(gelu(x, w, b), n, m),
        "linear, GELU, residual": gelu,
        "i8 weights": lambda x, w, s: x @ (w.astype(np.float32) * s[:, None]).T,
        "q, k, v": lambda x, *p: tuple(linear(x, p[k], p[3 + k]) for k in range(3)),
        "two layers": lambda x, w, v: nn.relu(x @ w) @ v,
        "(a)": lambda x, y: nn.relu((np.sin(x) * np.cos(y) + x) * y),
        "(b)": lambda x: (np.tanh(0.1 * x + 1.7) * nn.sigmoid(x) + np.exp(-x * x)).sum(),
        "(e)": lambda x: nn.sigmoid(nn.relu(2 * x + 1) * 0.5),
        "where": lambda x: np.where(x > 1, np.log(x), np.sqrt(x)),
        "pow": np.power,
        "softmax": lambda x: nn.softmax(x, -1),
        "layer norm": norm,
        "RMS norm": lambda x, w: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w,
        "logsumexp": lambda x: jax.scipy.special.logsumexp(x, 1),
        "pairwise": lambda x, y: np.sqrt(((x[:, None] - y[None]) ** 2).sum(2)),
        "sum of": {"all": lambda x: x.sum(), "rows": lambda x: x.sum(1), "columns": lambda x: x.sum(0)}.get(name.split(",")[0].split()[-1]),
        "max of all": lambda x: x.max(),
        "variance": lambda x: x.var(0),
        "every other": lambda x: x[::2, ::2],
        "five-point": lambda x: x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1],
        "eight of": lambda *x: np.concatenate(x, 1),
        "scatter-add": lambda x, i, s: x.at[i].add(s),
        "8192 rows": lambda x, i: x[i],
        "rotary": rotary,
        "ALiBi": alibi,
        "transformer": transformer,
        "ResNet": resnet,
    }
    f = next((f for start, f in of.items() if name.startswith(start)), None)
    return jax.jit(f) if f else None


def main():
    parser = options(__doc__, 1.5)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = arguments(parser)
    try:
        import numpy as np
        import torch
    except ImportError:
        print("programs.py: NumPy or PyTorch is not there")
        return 77
    jax = None
    if args.isa != "avx2":
        try:
            import jax
        except ImportError:
            pass
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    kiln, bad, table = Kiln(args.lib, args.threads), 0, []
    print(f"{'program':44} {'kiln ms':>9}  best peer over kiln, strict over fast")
    for i, name in kiln.names():
        if args.names and not any(n in name for n in args.names):
            continue
        strict, run = kiln.open(i), kiln.open(i)
        arrays = []
        while (array := kiln.array(np, run, len(arrays))) is not None:
            arrays.append(array)
        tensors = [torch.from_numpy(a) for a in arrays]
        eager = torch_function(torch, name)
        sides = {"kiln": lambda: kiln.call(run), "strict": lambda: kiln.call(strict, b"strict"), "torch": lambda: eager(*tensors)}
        if f := numpy_function(np, name):
            sides["numpy"] = lambda: f(*arrays)
        if not args.no_compile:
            try:
                compiled = torch.compile(eager)
                compiled(*tensors)
                sides["torch.compile"] = lambda: compiled(*tensors)
            except Exception as e:  # it needs a C++ compiler, and does not know all
                print(f"  torch.compile: {type(e).__name__}", file=sys.stderr)
        if jax and (jitted := jax_function(jax, name)):
            jax_inputs = [jax.numpy.asarray(a) for a in arrays]
            sides["jax.jit"] = lambda: jax.block_until_ready(jitted(*jax_inputs))
        want = eager(*tensors)
        want = [w.numpy() for w in (want if isinstance(want, tuple) else (want,))]
        off = 0.0
        for side, math in ((run, "fast"), (strict, "strict")):
            kiln.call(side, math.encode())
            for k, w in enumerate(want):
                got = kiln.array(np, side, -1 - k)
                apart = float(np.abs(got.astype(np.float64) - w).max() / max(1e-30, np.abs(w).max()))
                off = max(off, apart)
                if got.shape != w.shape or not apart <= TOLERANCE[w.dtype.kind]:
                    bad += 1
                    print(f"{name}: WRONG by {apart:.1e} in {math}", flush=True)
        seconds, ratio = turns(sides, args.seconds)
        own = ratio.pop("strict")
        best = min(ratio, key=ratio.get)
        table.append({"row": name, "seconds": seconds, "ratio": ratio, "strict": own, "off": off})
        others = "  ".join(f"{side} {s * 1e3:.3f}" for side, s in seconds.items() if side not in ("kiln", "strict"))
        print(f"{name:44} {seconds['kiln'] * 1e3:9.3f}  {ratio[best]:5.2f} {best:13} {own:5.2f}   {others}", flush=True)
        kiln.lib.programs_close(run)
        kiln.lib.programs_close(strict)
    return finish(args, table, bad)


if __name__ == "__main__":
    sys.exit(main())
