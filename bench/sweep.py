#!/usr/bin/env python3
"""The rows of bench/sweep.c beside eager PyTorch, in one process: PyTorch's time over kiln's, row by row.

    sweep.py --lib build/release/bench/libbench_sweep.so [--isa avx2] [--dynamic auto] [--only TEXT[,TEXT...]] [--below 0.9] [--threads 2]
             [--seconds S] [--least] [--json FILE]

Both sides have the same elements and threads and take turns; figures are medians over the turns, with --least their minima, which say more on a
machine that others use. Each result is compared: exactly, but for sums of floats and softmax. Rows below --below are printed, then a line a kind
of op: rows, median, how many are below. --isa avx2 keeps both to AVX2 (kiln: KILN_CPU=x86-64-v3). --dynamic: KILN_DYNAMIC, never where it is not
said: each row is a program for its sizes. With always shapes of one rank share programs, made at the first of them; with --only SHAPE each has
the programs that a process with such shapes alone has. Exit status: 0, 1 some result is wrong, 77 there is no PyTorch.
"""
import argparse
import ctypes
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peers import AVX2, finish, keep_to  # noqa: E402

PIECES, ELEMENTS = 3, 1 << 20


def peer(torch, op, x, axis, to):
    """What PyTorch does for a row, and how far results may be apart."""
    places = (torch.arange(x[0].shape[axis]) * 7919) % x[0].shape[axis]
    exact = {
        "concat": lambda: torch.cat(x, axis),
        "stack": lambda: torch.stack(x, axis),
        "roll": lambda: torch.roll(x[0], 1, axis),
        "flip": lambda: torch.flip(x[0], (axis,)),
        "take": lambda: torch.index_select(x[0], axis, places),
        "max": lambda: torch.amax(x[0], axis),
        "argmax": lambda: torch.argmax(x[0], axis),
        "sort": lambda: torch.sort(x[0], dim=axis, stable=True).values,
        "transpose": lambda: x[0].transpose(axis, axis + 1).contiguous(),
        "cast": lambda: x[0].to(to),
    }
    close = {
        "sum": lambda: torch.sum(x[0], axis),
        "cumsum": lambda: torch.cumsum(x[0], axis),
        "softmax": lambda: torch.softmax(x[0], axis),
    }
    return exact.get(op) or close[op], op in exact


def turns(kiln, other, seconds, least):
    """Median seconds of a call of each side, and the median of the ratios; least: those of the shortest."""
    sides, count, times = (kiln, other), [], ([], [])
    for call in sides:
        call(), call()
        start = time.perf_counter()
        call()
        count.append(max(1, min(500, int(0.005 / max(time.perf_counter() - start, 1e-7)))))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for call, n, took in zip(sides, count, times):
            start = time.perf_counter()
            for _ in range(n):
                call()
            took.append((time.perf_counter() - start) / n)
    if least:
        return [min(t) for t in times], min(times[1]) / min(times[0])
    return [statistics.median(t) for t in times], statistics.median(b / a for a, b in zip(*times))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", required=True)
    p.add_argument("--isa", choices=["avx2"])
    p.add_argument("--dynamic", choices=["never", "auto", "always"], default="never")
    p.add_argument("--only", default="")
    p.add_argument("--below", type=float, default=0.9)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seconds", type=float, default=0.1)
    p.add_argument("--least", action="store_true")
    p.add_argument("--json")
    args = p.parse_args()
    if args.isa and any(os.environ.get(name) != value for name, value in AVX2.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **AVX2})  # the libraries read it when they are loaded
    keep_to(args.threads)
    try:
        import torch
    except ImportError:
        return 77
    torch.set_num_threads(args.threads)
    os.environ["KILN_THREADS"] = str(args.threads)
    os.environ["KILN_DYNAMIC"] = args.dynamic
    dtypes = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32, "i64": torch.int64,
              "u8": torch.uint8, "bool": torch.bool}
    lib = ctypes.CDLL(os.path.abspath(args.lib))
    lib.sweep_name.restype = ctypes.c_char_p
    lib.sweep_open.restype = ctypes.c_void_p
    lib.sweep_run.restype = ctypes.c_int64
    kinds, table, wrong = {}, [], 0
    for row in range(lib.sweep_rows()):
        name = lib.sweep_name(row).decode()
        if not any(only in name for only in args.only.split(",")):
            continue
        op, shape, *rest = name.split()
        shape, axis = [int(n) for n in shape.split("x")], 0 if op == "cast" else int(rest[0])
        dtype, to = dtypes[rest[0] if op == "cast" else rest[1]], dtypes[rest[1]]
        inputs = PIECES if op in ("concat", "stack") else 1
        x = [(torch.arange(ELEMENTS) % (101 + i)).reshape(shape).to(dtype) for i in range(inputs)]
        call, exact = peer(torch, op, x, axis, to)
        handle = ctypes.c_void_p(lib.sweep_open(row))
        want = call()
        exact |= not dtype.is_floating_point  # sums of ints: i64 in both, of u8 u64 in kiln
        got = torch.empty(want.shape, dtype=want.dtype)
        lib.sweep_run(handle, ctypes.c_void_p(got.data_ptr()))
        rtol = 2e-2 if dtype.itemsize == 2 else 1e-4
        same = torch.equal(got, want) if exact else torch.allclose(got.double(), want.double(), rtol=rtol, equal_nan=True)
        wrong += not same
        (kiln, other), ratio = turns(lambda: lib.sweep_run(handle, None), call, args.seconds, args.least)
        lib.sweep_close(handle)
        kinds.setdefault(op, []).append(ratio)
        table.append({"row": name, "kiln": kiln, "torch": other, "ratio": ratio})
        if ratio < args.below or not same:
            print(f"{name:36} {kiln * 1e6:10.1f} us  torch {other * 1e6:10.1f} us  {ratio:5.2f}{'' if same else '  WRONG'}", flush=True)
    for op, ratios in kinds.items():
        low = [r for r in ratios if r < args.below]
        print(f"{op:12} {len(ratios):4} rows, median {statistics.median(ratios):5.2f}, {len(low):4} below {args.below}"
              + (f", mean of those {statistics.mean(low):.2f}" if low else ""))
    return finish(args, table, wrong)


if __name__ == "__main__":
    sys.exit(main())
