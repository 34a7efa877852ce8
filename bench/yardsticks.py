#!/usr/bin/env python3
"""The workloads of bench/device.c in other programs: eager torch and torch.compile, or jax.jit. A part of bench/gpu.

    device describe | yardsticks.py torch|jax [--rows FILE] [--rounds N] [--seconds S] [--cpu] [--only NAME,...]

Reads from standard input what `device describe` prints: names, dtypes, shapes, how many sets of inputs. Inputs are
the same numbers (a hash of index and seed); calls go on for 0.3 s before a clock starts; then rounds of calls, one wait
per round, the median per call: as device.c does. Every result is compared with the same formula in float64. Adds a line
per figure to FILE (bench/result.h says its form). What fails is a line, too. --cpu: on the CPU, to try this script.
Exit status: 0, 1 something failed, 77 there is no such package or no device.
"""
import argparse
import os
import statistics
import sys
import time

MASK = 0xFFFFFFFF
BATCH_SECONDS = 0.02
WARM_SECONDS = 0.3
CHECKED_ROWS = 8  # of a large product
PRODUCTS = {"f32": 2e-5, "tf32": 2e-3, "bf16": 2e-2, "f16": 4e-3}  # large ones and their tolerances, device.c's


class Case:
    def __init__(self, line):
        field = line.rstrip("\n").split("\t")
        self.name, self.workload, self.dtype = field[:3]
        self.sets, self.tolerance = int(field[3]), float(field[5])
        numbers = field[7:]
        self.inputs = []  # (shape, low, high)
        for k in range(int(field[6])):
            rows, columns, low, high = numbers[4 * k:4 * k + 4]
            shape = (int(rows), int(columns)) if int(columns) else (int(rows),)
            self.inputs.append((shape, float(low), float(high)))
        self.contraction = self.workload in ("c", "g", "matmul")
        self.tf32 = "tf32" in self.name


class Rows:
    def __init__(self, path):
        self.file = open(path, "a") if path else None
        self.failed = 0

    def add(self, name, who, value, unit="", aim=0, better="less", outcome="ok", note=""):
        note = " ".join(str(note).split())[:200]
        self.failed += outcome == "failed"
        if self.file:
            self.file.write("\t".join([name, who, f"{value:.6g}", unit, f"{aim:g}", better, outcome, note]) + "\n")
            self.file.flush()
        print(f"{name:44} {who:14} {value:12.5g} {unit:8} {'' if outcome == 'ok' else outcome} {note}", flush=True)


class Torch:
    """torch, eager and compiled."""

    def __init__(self, cpu):
        import torch

        self.torch = torch
        self.version = torch.__version__
        if not cpu and not torch.cuda.is_available():
            raise LookupError("torch sees no CUDA device")
        self.device = "cpu" if cpu else f"cuda:{ordinal()}"
        if not cpu:
            torch.cuda.set_device(ordinal())
        self.dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
        nn = torch.nn.functional
        self.formulas = {
            "copy": lambda x: -x,
            "a": lambda x, y: torch.relu((torch.sin(x) * torch.cos(y) + x) * y),
            "b": lambda x: torch.sum(torch.tanh(x * 0.1 + 1.7) * torch.sigmoid(x) + torch.exp(-x * x)),
            "e": lambda x: torch.sigmoid(torch.relu(x * 2 + 1) * 0.5),
            "softmax": lambda x: torch.softmax(x, -1),
            "layer_norm": lambda x, w, b: nn.layer_norm(x, (x.shape[-1],), w, b, 1e-5),
            "c": lambda x, a, b: torch.relu(x @ a) @ b,
            "g": self.unused_product,
            "matmul": lambda x, a: x @ a,
            "chain": self.chain,
        }

    @staticmethod
    def chain(x, y):
        z = x
        for _ in range(5):
            z = z * y - x
        return z

    def unused_product(self, x, a, b, c):
        hidden = self.torch.relu(x @ a)
        hidden @ c
        return hidden @ b

    def ways(self):
        return [("torch", lambda f: f), ("torch.compile", self.compiled)]

    def compiled(self, f):
        self.torch._dynamo.reset()
        return self.torch.compile(f, dynamic=False)

    def input(self, shape, seed, low, high, dtype):
        torch, n = self.torch, 1
        for d in shape:
            n *= d
        x = (torch.arange(n, dtype=torch.int64, device=self.device) + seed * 0x9E3779B9) & MASK
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
        x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
        x = x ^ (x >> 16)
        values = low + (high - low) * ((x >> 8).double() * 2.0**-24)
        return values.float().to(self.dtypes[dtype]).reshape(shape)

    def tf32(self, on):
        self.torch.set_float32_matmul_precision("high" if on else "highest")

    def wait(self, _):
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def double(self, x):
        return x.double()

    def error(self, result, wanted):
        wanted = wanted.double()
        worst = (result.double() - wanted).abs().max() / wanted.abs().max()
        return float(worst)


class Jax:
    """jax.jit."""

    def __init__(self, cpu):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", True)  # for the check; the inputs have their own dtypes
        self.jax, self.jnp = jax, jnp
        self.version = jax.__version__
        devices = jax.devices("cpu") if cpu else [d for d in jax.devices() if d.platform in ("gpu", "cuda")]
        if not devices:
            raise LookupError("jax sees no CUDA device")
        self.device = devices[0 if cpu else ordinal()]
        jax.config.update("jax_default_device", self.device)
        self.dtypes = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}
        relu = lambda x: jnp.maximum(x, 0)
        self.formulas = {
            "copy": lambda x: -x,
            "a": lambda x, y: relu((jnp.sin(x) * jnp.cos(y) + x) * y),
            "b": lambda x: jnp.sum(jnp.tanh(x * 0.1 + 1.7) * jax.nn.sigmoid(x) + jnp.exp(-x * x)),
            "e": lambda x: jax.nn.sigmoid(relu(x * 2 + 1) * 0.5),
            "softmax": lambda x: jax.nn.softmax(x, axis=-1),
            "layer_norm": self.layer_norm,
            "c": lambda x, a, b: relu(x @ a) @ b,
            "g": self.unused_product,
            "matmul": lambda x, a: x @ a,
            "chain": Torch.chain,
        }

    def layer_norm(self, x, w, b):
        mean = x.mean(-1, keepdims=True)
        centred = x - mean
        return centred * self.jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * w + b

    def unused_product(self, x, a, b, c):
        hidden = self.jnp.maximum(x @ a, 0)
        hidden @ c
        return hidden @ b

    def ways(self):
        return [("jax.jit", self.compiled)]

    def compiled(self, f):
        self.jax.clear_caches()
        return self.jax.jit(f)

    def input(self, shape, seed, low, high, dtype):
        jnp, n = self.jnp, 1
        for d in shape:
            n *= d
        x = (jnp.arange(n, dtype=jnp.int64) + seed * 0x9E3779B9) & MASK
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
        x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
        x = x ^ (x >> 16)
        values = low + (high - low) * ((x >> 8).astype(jnp.float64) * 2.0**-24)
        return self.wait(values.astype(jnp.float32).astype(self.dtypes[dtype]).reshape(shape))

    def tf32(self, on):
        self.jax.config.update("jax_default_matmul_precision", "tensorfloat32" if on else "highest")

    def wait(self, x):
        return self.jax.block_until_ready(x)

    def double(self, x):
        return x.astype(self.jnp.float64)

    def error(self, result, wanted):
        worst = self.jnp.max(self.jnp.abs(self.double(result) - wanted)) / self.jnp.max(self.jnp.abs(wanted))
        return float(worst)


def ordinal():
    name = os.environ.get("KILN_DEVICE", "cuda:0")
    return int(name[5:]) if name.startswith("cuda:") else 0


class Timer:
    """Calls f on one set of inputs after the other."""

    def __init__(self, program, f, sets):
        self.program, self.f, self.sets, self.next = program, f, sets, 0

    def batch(self, n):
        f, sets, at = self.f, self.sets, self.next
        start = time.perf_counter()
        for _ in range(n):
            last = f(*sets[at])
            at = at + 1 if at + 1 < len(sets) else 0
        self.program.wait(last)
        seconds = (time.perf_counter() - start) / n
        self.last, self.last_set, self.next = last, (at - 1) % len(sets), at
        return seconds

    def median(self, rounds):
        n, start = len(self.sets), time.perf_counter()
        seconds = self.batch(n)
        while True:
            seconds = min(seconds, self.batch(n))
            if rounds < 5 or time.perf_counter() - start > WARM_SECONDS:
                break
        calls = max(1, min(2000, int(BATCH_SECONDS / seconds)))
        return statistics.median(self.batch(calls) for _ in range(rounds))


def make_sets(program, case):
    return [
        [program.input(shape, 4 * s + k + 1, low, high, case.dtype) for k, (shape, low, high) in enumerate(case.inputs)]
        for s in range(case.sets)
    ]


def flops(case):
    (n, k), (_, h) = case.inputs[0][0], case.inputs[1][0]
    return 2 * n * k * h * (1 if case.workload == "matmul" else 2)


def rows_to_check(case):
    """From near the first to the last, evenly."""
    last = case.inputs[0][0][0] - 1
    step = last // (CHECKED_ROWS - 1)
    return slice(last % step, None, step)


def measure(program, case, rows, rounds, out_of_time):
    """All ways of one program to do one workload."""
    sets = make_sets(program, case)
    formula = program.formulas[case.workload]
    product = case.workload == "matmul"
    program.tf32(False)
    exact = [program.double(x) for x in sets[0]]
    if product:  # all of it would take a second in float64
        some = rows_to_check(case)
        exact[0] = exact[0][some]
    wanted = formula(*exact)
    del exact
    program.tf32(case.tf32)
    for who, way in program.ways()[:1 if product else None]:
        if out_of_time():
            rows.add(f"{case.name}: time", who, float("nan"), "us", 0, "less", "skipped", "out of time")
            continue
        try:
            timer = Timer(program, way(formula), sets)
            first = timer.batch(1)  # on set 0
            error = program.error(timer.last[some] if product else timer.last, wanted)
            outcome = ("ok", "") if error <= case.tolerance else ("failed", "wrong result")
            rows.add(f"{case.name}: error", who, error, "", case.tolerance, "less", *outcome)
            if not product:
                rows.add(f"{case.name}: first call, inputs there", who, 1e3 * first, "ms")
            elif outcome[0] != "ok":
                continue  # its rate is nothing to divide by
            seconds = timer.median(rounds)
            rows.add(f"{case.name}: time", who, 1e6 * seconds, "us")
            if case.contraction:
                rows.add(f"{case.name}: rate", who, 1e-12 * flops(case) / seconds, "TFLOP/s", 0, "more")
        except Exception as error:  # whatever it is, the other ways and workloads go on
            failed(rows, f"{case.name}: time", who, error)


def failed(rows, name, who, error):
    rows.add(name, who, float("nan"), "us", 0, "less", "failed", f"{type(error).__name__}: {error}")


def measure_host(program, rows, rounds):
    """What a call of ten ops on 16 elements costs the host, the device's work left out as far as it runs beside."""
    ones = [program.input((16,), k + 1, 0.25, 0.5, "f32") for k in range(2)]
    for who, way in program.ways():
        try:
            f = way(program.formulas["chain"])
            program.wait(f(*ones))
            times = []
            for _ in range(rounds + 2):
                start = time.perf_counter()
                for _ in range(100):
                    last = f(*ones)
                times.append((time.perf_counter() - start) / 100)
                program.wait(last)
            rows.add("host: 10 ops recorded, hit, queued", who, 1e6 * statistics.median(times[2:]), "us")
        except Exception as error:
            failed(rows, "host: 10 ops recorded, hit, queued", who, error)


def largest_products(cases):
    """A large product of each dtype: what this device reaches through the vendor's library."""
    full = any(c.name == "a" and c.inputs[0][0][0] >= 1 << 24 for c in cases)
    n = 8192 if full else 128
    for name, tolerance in PRODUCTS.items():
        dtype = "f32" if name == "tf32" else name
        yield Case("\t".join(["matmul_" + name, "matmul", dtype, "1", "2", str(tolerance), "2"] + [str(n), str(n), "-1", "1"] * 2))


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("program", choices=["torch", "jax"])
    options.add_argument("--rows")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--seconds", type=float, default=1e9)
    options.add_argument("--cpu", action="store_true")
    options.add_argument("--only", default="")
    given = options.parse_args()
    end = time.monotonic() + given.seconds
    rows = Rows(given.rows)
    cases = [Case(line) for line in sys.stdin if line.count("\t") > 6]
    only = given.only.split(",") if given.only else None
    try:
        program = Torch(given.cpu) if given.program == "torch" else Jax(given.cpu)
    except (ImportError, LookupError, RuntimeError) as error:
        rows.add(f"{given.program}: version", given.program, float("nan"), "", 0, "less", "skipped", error)
        return 77
    version = f"{program.version} on {program.device}, Python {sys.version.split()[0]}"
    rows.add(f"{given.program}: version", given.program, 0, "", 0, "less", "ok", version)
    extra = list(largest_products(cases)) if given.program == "torch" else []
    if not only or "host" in only:
        measure_host(program, rows, given.rounds)
    for case in [c for c in cases if not only or c.name in only] + (extra if not only else []):
        try:
            measure(program, case, rows, given.rounds, lambda: time.monotonic() > end)
        except Exception as error:  # inputs, reference
            failed(rows, f"{case.name}: time", program.ways()[0][0], error)
    return 1 if rows.failed else 0


if __name__ == "__main__":
    sys.exit(main())
