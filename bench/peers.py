#!/usr/bin/env python3
"""kiln beside NumPy and PyTorch, in one process: time of the best peer over kiln's, row by row.

    peers.py --lib build/release/libkiln.so [--isa avx2] [--only TEXT,...] [--seconds S] [--json FILE]

kiln is loaded by ctypes; the peers are those that can be imported. All have the same numbers and the same number of threads (--threads);
sides take turns, a turn is some 20 ms of calls, and the figures are medians over the turns. A call is eager on all sides: record and
evaluate, for kiln. Each result is compared with the first peer's. --isa avx2 keeps everybody to AVX2 (kiln: KILN_CPU=x86-64-v3).
Exit status: 0, 1 some result is wrong, 77 no peer can be imported.
"""
import argparse
import ctypes
import json
import os
import statistics
import sys
import time

DTYPES = {"bool": 0, "i8": 1, "i16": 2, "i32": 3, "i64": 4, "f16": 9, "bf16": 10, "f32": 11, "f64": 12}
NUMPY = {"i8": "int8", "i32": "int32", "i64": "int64", "f16": "float16", "f32": "float32", "f64": "float64"}
TOLERANCE = {"f16": 4e-3, "bf16": 2e-2, "f32": 2e-5, "f64": 1e-13}  # of the largest value of the result
AVX2 = {"KILN_CPU": "x86-64-v3", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_ICL AVX512_SPR X86_V4"}


def keep_to(threads):
    """So many threads for all that is imported from here on. Those of one side that spin for work would hold the cores while it is another's turn."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ.update({"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "OPENBLAS_THREAD_TIMEOUT": "4"})


def options(doc, seconds, isa=True):
    """What every comparison takes; isa: those whose peers can all be kept to one."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True)
    if isa:
        parser.add_argument("--isa", choices=["native", "avx2"], default="native")
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json")
    return parser


def arguments(parser):
    """Those of this run, whose process keeps to the instruction set and the threads asked for."""
    args = parser.parse_args()
    if vars(args).get("isa") == "avx2":
        os.environ.update(AVX2)
    keep_to(args.threads)
    return args


def finish(args, table, bad):
    """Writes what --json asks for; the exit status."""
    if args.json:
        with open(args.json, "w") as f:
            json.dump(table, f, indent=1)
    return 1 if bad else 0


class Row:
    """A product: shapes of both factors as the product sees them, and which of them lie transposed."""

    def __init__(self, name, a, b, dtype="f32", ta=False, tb=False):
        self.name, self.shape, self.dtype, self.transposed = name, (a, b), dtype, (ta, tb)
        self.flops = 2 * b[-1] * a[-1] * a[-2]
        for n in max(a[:-2], b[:-2], key=len):
            self.flops *= n


def rows():
    all = []

    def row(*args, **more):
        all.append(Row(*args, **more))

    for n in (128, 256, 512, 1024, 2048, 4096):
        row(f"{n} cubed", (n, n), (n, n))
    row("256x2048x1024", (256, 1024), (1024, 2048))
    row("512x4096x2048", (512, 2048), (2048, 4096))
    for n in (512, 1024):
        row(f"{n} cubed f64", (n, n), (n, n), "f64")
        row(f"{n} cubed bf16", (n, n), (n, n), "bf16")
        row(f"{n} cubed f16", (n, n), (n, n), "f16")
    row("2048 cubed bf16", (2048, 2048), (2048, 2048), "bf16")
    row("256x2048x1024 bf16", (256, 1024), (1024, 2048), "bf16")
    row("a b^T 1024 bf16", (1024, 1024), (1024, 1024), "bf16", tb=True)
    row("matrix-vector 4096 bf16", (4096, 4096), (4096, 1), "bf16")
    row("matrix^T-vector 4096 bf16", (4096, 4096), (4096, 1), "bf16", ta=True)
    row("512 cubed i32", (512, 512), (512, 512), "i32")
    row("512 cubed i64", (512, 512), (512, 512), "i64")
    row("1024 cubed i8 to i32", (1024, 1024), (1024, 1024), "i8")
    row("a b^T 1024 i8 to i32", (1024, 1024), (1024, 1024), "i8", tb=True)
    row("a^T b 1024", (1024, 1024), (1024, 1024), ta=True)
    row("a b^T 1024", (1024, 1024), (1024, 1024), tb=True)
    row("a^T b^T 1024", (1024, 1024), (1024, 1024), ta=True, tb=True)
    row("64 of 128 cubed", (64, 128, 128), (64, 128, 128))
    for n in (16, 32, 64):
        row(f"1024 of {n} cubed", (1024, n, n), (1024, n, n))
    for n in (1024, 4096, 16384):
        row(f"matrix-vector {n}", (n, n), (n, 1))
        row(f"matrix^T-vector {n}", (n, n), (n, 1), ta=True)
    for m in (1, 2, 4, 8):
        row(f"{m} rows x 4096^2", (m, 4096), (4096, 4096))
        row(f"{m} rows x 4096^2 ^T", (m, 4096), (4096, 4096), tb=True)
    for k in (1, 4, 16):
        row(f"4096 x {k} x 4096", (4096, k), (k, 4096))
    row("16 x 65536 x 16", (16, 65536), (65536, 16))
    row("batched thin b8 h16 1 x 64 x 256", (8, 16, 1, 64), (16, 64, 256))
    row("batched thin b64 h16 1 x 128 x 512", (64, 16, 1, 128), (16, 128, 512))
    row("prime 509 x 521 x 503", (509, 521), (521, 503))
    row("64 x 768 x 768", (64, 768), (768, 768))
    row("100 x 100 x 100", (100, 100), (100, 100))
    return all


SORTED = [(2**20,), (1024, 1024), (65536, 64), (1024, 4096)]


class Shape(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int), ("dim", ctypes.c_int64 * 8)]


class Kiln:
    def __init__(self, path, threads):
        os.environ.setdefault("KILN_THREADS", str(threads))
        os.environ.setdefault("KILN_DYNAMIC", "never")  # each row is a program of its own, as in a process that runs it alone
        self.lib = ctypes.CDLL(os.path.abspath(path))
        for name in ("kiln_from", "kiln_matmul", "kiln_transpose", "kiln_permute", "kiln_scope_begin", "kiln_sort", "kiln_argsort", "kiln_cast"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.kiln_error_message.restype = ctypes.c_char_p

    def check(self, ok):
        if not ok:
            raise RuntimeError(self.lib.kiln_error_message().decode())
        return ok

    def array(self, dtype, shape, data):
        s = Shape(len(shape), (ctypes.c_int64 * 8)(*shape))
        t = ctypes.c_void_p(self.check(self.lib.kiln_from(DTYPES[dtype], s, ctypes.c_void_p(data))))
        self.check(self.lib.kiln_eval(t) == 0)
        return t

    def factors(self, row, *of):
        """As the product sees them: transposed, and i8 as i32, which is what the sums are."""
        of = [ctypes.c_void_p(self.lib.kiln_transpose(x)) if turned else x for x, turned in zip(of, row.transposed)]
        return [ctypes.c_void_p(self.lib.kiln_cast(x, DTYPES["i32"])) for x in of] if row.dtype == "i8" else of

    def product(self, row, a, b):
        lib = self.lib

        def call():
            scope = ctypes.c_void_p(lib.kiln_scope_begin())
            z = ctypes.c_void_p(self.check(lib.kiln_matmul(*self.factors(row, a, b))))
            self.check(lib.kiln_eval(z) == 0)
            lib.kiln_scope_end(scope)

        return call

    def sorting(self, function, x):
        def call():
            scope = ctypes.c_void_p(self.lib.kiln_scope_begin())
            self.check(self.lib.kiln_eval(ctypes.c_void_p(self.check(function(x, -1, False)))) == 0)
            self.lib.kiln_scope_end(scope)

        return call

    def result(self, row, a, b, room):
        z = ctypes.c_void_p(self.check(self.lib.kiln_matmul(*self.factors(row, a, b))))
        self.check(self.lib.kiln_read(z, DTYPES["i32" if row.dtype == "i8" else row.dtype], ctypes.c_void_p(room.ctypes.data), ctypes.c_size_t(room.nbytes)) == 0)


def turns(sides, seconds):
    """Median seconds of a call for each side, measured in turns; and the median over the turns of first peer over kiln for each peer."""
    count, times = {}, {name: [] for name in sides}
    for name, call in sides.items():
        call()
        call()
        start = time.perf_counter()
        call()
        each = time.perf_counter() - start
        count[name] = max(1, min(2000, int(0.02 / max(each, 1e-7))))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["kiln"]) < 5:
        for name, call in sides.items():
            start = time.perf_counter()
            for _ in range(count[name]):
                call()
            times[name].append((time.perf_counter() - start) / count[name])
    ratio = {n: statistics.median(p / k for p, k in zip(times[n], times["kiln"])) for n in sides if n != "kiln"}
    return {n: statistics.median(t) for n, t in times.items()}, ratio


def tell(name, flops, sides, off, wrong, args, table):
    seconds, ratio = turns(sides, args.seconds)
    best = min(ratio, key=ratio.get)
    table.append({"row": name, "seconds": seconds, "ratio": ratio, "off": off})
    rate = f"{flops / seconds['kiln'] / 1e9:8.1f}" if flops else " " * 8
    print(f"{name:36} {seconds['kiln'] * 1e6:10.1f} {rate}  {ratio[best]:5.2f} {best:6}"
          f" {'  '.join(f'{n} {s * 1e6:.1f} us' for n, s in seconds.items() if n != 'kiln')}{'  WRONG ' + str(off) if wrong else ''}",
          flush=True)


def sorts(kiln, np, torch, random, wanted, args, table):
    """Elements, and their places in a stable order, along the last axis; how many results are wrong."""
    bad = 0
    for dtype in ("f32", "f64", "i32", "i64"):
        for shape in SORTED:
            data = (random.standard_normal(shape) * 1e6).astype(NUMPY[dtype])
            x = kiln.array(dtype, shape, data.ctypes.data)
            for op in ("sort", "argsort"):
                name = f"{op} {dtype} {' x '.join(map(str, shape))}"
                if not wanted(name):
                    continue
                function = getattr(kiln.lib, "kiln_" + op)
                sides = {"kiln": kiln.sorting(function, x)}
                sides["numpy"] = (lambda: np.sort(data)) if op == "sort" else (lambda: np.argsort(data, kind="stable"))
                if torch:
                    t = torch.from_numpy(data)
                    sides["torch"] = lambda: torch.sort(t, stable=op == "argsort")
                want = sides["numpy"]()
                got = np.empty_like(want)
                kiln.check(kiln.lib.kiln_read(ctypes.c_void_p(function(x, -1, False)), DTYPES["i64" if op == "argsort" else dtype],
                                              ctypes.c_void_p(got.ctypes.data), ctypes.c_size_t(got.nbytes)) == 0)
                wrong = not np.array_equal(want, got)
                bad += wrong
                tell(name, 0, sides, 0, wrong, args, table)
            kiln.lib.kiln_release(x)
    return bad


def main():
    parser = options(__doc__, 0.6)
    parser.add_argument("--only", default="")
    args = arguments(parser)
    try:
        import numpy as np
    except ImportError:
        print("peers.py: NumPy is not there")
        return 77
    try:
        import torch
        torch.set_num_threads(args.threads)
    except ImportError:
        torch = None
    kiln, bad, table, random = Kiln(args.lib, args.threads), 0, [], np.random.default_rng(1)
    only = [o for o in args.only.split(",") if o]
    print(f"{'row':36} {'kiln us':>10} {'GFLOP/s':>8}  best peer over kiln")

    def wanted(name):
        return not only or any(o in name for o in only)

    for row in rows():
        if not wanted(row.name):
            continue
        half = row.dtype == "bf16"
        integer = row.dtype.startswith("i")
        stored = [tuple(s[:-2]) + (s[-1], s[-2]) if t else s for s, t in zip(row.shape, row.transposed)]
        np_type = np.float32 if half else np.dtype(NUMPY[row.dtype])
        data = [(random.integers(-9, 9, s) if integer else random.uniform(-1, 1, s)).astype(np_type) for s in stored]
        raw = [(d.view(np.uint32) >> 16).astype(np.uint16) for d in data] if half else data
        tensors = [kiln.array(row.dtype, s, d.ctypes.data) for s, d in zip(stored, raw)]
        seen = [d.swapaxes(-1, -2) if t else d for d, t in zip(data, row.transposed)]
        sides = {"kiln": kiln.product(row, *tensors)}
        if half or row.dtype == "f16":
            want = None
        elif row.dtype == "i8":
            want = np.matmul(*[x.astype(np.float32) for x in seen])  # sums are small enough to be exact
        elif not integer or row.shape[0][-1] <= 600:
            want = np.matmul(*seen)
            sides["numpy"] = lambda: np.matmul(*seen)
        if torch:
            t = [torch.from_numpy(r.view(np.int16)).view(torch.bfloat16) if half else torch.from_numpy(r) for r in raw]
            t = [x.transpose(-1, -2) if flip else x for x, flip in zip(t, row.transposed)]
            multiply = torch._int_mm if row.dtype == "i8" else torch.matmul
            sides["torch"] = lambda: multiply(*t)
            if want is None:
                want = torch.matmul(*t).float().numpy()
        got = np.empty(want.shape, dtype=np.uint16 if half else "int32" if row.dtype == "i8" else NUMPY[row.dtype])
        kiln.result(row, *tensors, got)
        if half:
            got = (got.astype(np.uint32) << 16).view(np.float32)
        off = float(np.max(np.abs(got.astype(np.float64) - want)) / max(1e-30, float(np.max(np.abs(want)))))
        wrong = off > TOLERANCE.get(row.dtype, 0)
        bad += wrong
        tell(row.name, row.flops, sides, off, wrong, args, table)
        for x in tensors:
            kiln.lib.kiln_release(x)
    bad += sorts(kiln, np, torch, random, wanted, args, table)
    return finish(args, table, bad)


if __name__ == "__main__":
    sys.exit(main())
