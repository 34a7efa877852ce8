#!/usr/bin/env python3
"""The rows of bench/threads.c beside PyTorch and JAX, in one process: the throughput of n threads over that of one.

    threads.py --lib build/release/bench/libbench_threads.so [--only TEXT] [--threads N,N] [--seconds S] [--rounds N] [--json FILE]

kiln's threads are C threads of the library; those of PyTorch (eager, torch.set_num_threads(1)) and JAX (jit, XLA's threads off) are Python's, which release
the interpreter's lock within a call only: small calls show that lock. Where a call uses one core each thread is kept to one of its own; the sides take turns, figures are medians over the
rounds. Rows in which a call uses all cores have no JAX, misses no PyTorch (torch.compile takes seconds).
"""
import argparse
import ctypes
import itertools
import json
import os
import statistics
import threading
import time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
OPS, MISSES = 4, 3
ONE_CORE, OWN, MISS = 1, 2, 4


def chain(lib, x, number):
    """As in threads.c: 16 programs that take as long as each other."""
    y = x
    for _ in range(OPS):
        y = lib.sin(y) * x if number % 2 else x * lib.cos(y)
        number //= 2
    return y


def rate(calls, seconds, limit, pinned):
    """Calls in a second of all threads together: each has a function to call again and again, at most `limit` times."""
    cpus, stop, ready = sorted(os.sched_getaffinity(0)), threading.Event(), threading.Barrier(len(calls))
    done = [None] * len(calls)

    def work(i):
        if pinned:
            os.sched_setaffinity(threading.get_native_id(), {cpus[i % len(cpus)]})
        calls[i]()
        ready.wait()
        start = last = time.perf_counter()
        n = 0
        while not stop.is_set() and n < limit:
            calls[i]()
            n, last = n + 1, time.perf_counter()
            if last - start > seconds:
                stop.set()
        done[i] = (n, start, last)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(n for n, _, _ in done) / (max(e for _, _, e in done) - min(s for _, s, _ in done))


def torch_calls(torch, elements, what, n):
    if what & MISS:
        return None
    cores = 1 if what & ONE_CORE else len(os.sched_getaffinity(0))

    def call(i):
        x = torch.rand(elements) * 2 - 1
        begun = []

        def run():
            if not begun:  # in the thread that it is said for, which keeps it to itself
                begun.append(torch.set_num_threads(cores))
            with torch.inference_mode():
                chain(torch, x, i if what & OWN else 0)

        return run

    return [call(i) for i in range(n)]


unique = itertools.count(1)


def jax_calls(jax, elements, what, n):
    if not what & ONE_CORE:
        return None
    jnp = jax.numpy

    def call(i):
        x = jnp.linspace(-1, 1, elements, dtype=jnp.float32)
        number = i if what & OWN else 0
        f = jax.jit(lambda x: chain(jnp, x, number))

        def run():
            f(x).block_until_ready()

        def miss():
            number = next(unique)
            jax.jit(lambda x: chain(jnp, x, number % 16) + number)(x).block_until_ready()

        return miss if what & MISS else run

    return [call(i) for i in range(n)]


def optional(name):
    try:
        return __import__(name)
    except ImportError:
        return None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", required=True)
    p.add_argument("--only", default="")
    p.add_argument("--threads", default=f"2,{2 * len(os.sched_getaffinity(0))}", help="numbers, with commas")
    p.add_argument("--seconds", type=float, default=0.1)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--json")
    a = p.parse_args()
    kiln = ctypes.CDLL(a.lib)
    kiln.threads_name.restype = ctypes.c_char_p
    kiln.threads_elements.restype = ctypes.c_int64
    kiln.threads_rate.restype = ctypes.c_double
    kiln.threads_rate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_double]
    torch, jax = optional("torch"), optional("jax")
    rows = []
    for row in range(kiln.threads_rows()):
        name, elements, what = kiln.threads_name(row).decode(), kiln.threads_elements(row), kiln.threads_what(row)
        if a.only not in name:
            continue
        limit = MISSES if what & MISS else 1 << 62
        sides = {"kiln": lambda n: kiln.threads_rate(row, n, a.seconds)}
        for side, module, make in (("torch", torch, torch_calls), ("jax", jax, jax_calls)):
            if module and make(module, elements, what, 1):
                sides[side] = lambda n, module=module, make=make: rate(make(module, elements, what, n), a.seconds, limit, what & ONE_CORE)
        for n in (int(t) for t in a.threads.split(",")):
            rates = {side: ([], []) for side in sides}
            for _ in range(a.rounds):
                for side, measure in sides.items():
                    rates[side][0].append(measure(1))
                    rates[side][1].append(measure(n))
            for side, (one, many) in rates.items():
                took, ratio = 1e6 / statistics.median(one), statistics.median(m / o for o, m in zip(one, many))
                rows.append({"row": name, "side": side, "threads": n, "us": took, "over_one": ratio})
                print(f"{name:34} {side:6} a call of one thread {took:10.2f} us, {n} threads over 1: {ratio:5.2f}", flush=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)


main()
