#!/usr/bin/env python3
"""Convolution, pooling, attention, their gradients and batches of products: kiln beside PyTorch, in one process.

    convolution.py --lib build/release/bench/libbench_convolution.so [--isa avx2] [--seconds S] [--threads N] [--varied] [--json FILE] [NAME...]

The cases are those of bench/convolution.c with the same inputs; NAMEs choose those whose name has one of them. --isa avx2 keeps both to AVX2.
PyTorch gets images and weights in the layout that it prefers (channels last) as well, and the faster one counts. --varied: kiln's program is the one for all sizes, which has
met other batches and sizes before; rows of one kind share it, so choose one row a run. Sides take turns; figures are medians over the turns, ratios
PyTorch's time over kiln's, turn by turn. Results are compared. Exit status: 0, 1 results differ, 77 no PyTorch.
"""
import ctypes
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peers import arguments, finish, options, turns  # noqa: E402

TOLERANCE = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}  # of the largest value


class Kiln:
    def __init__(self, path, threads, varied):
        os.environ.setdefault("KILN_THREADS", str(threads))
        os.environ.setdefault("KILN_DYNAMIC", "auto" if varied else "never")  # never: each row is a program of its own, as in a process that runs it alone
        self.varied = int(varied)
        self.lib = ctypes.CDLL(os.path.abspath(path))
        self.lib.convolution_open.restype = ctypes.c_void_p
        self.lib.convolution_text.restype = ctypes.c_char_p

    def cases(self):
        i = 0
        while text := self.lib.convolution_text(i):
            name, kind, *numbers = text.decode().split(";")
            yield i, name, kind, *map(int, numbers)
            i += 1

    def open(self, i):
        self.run = ctypes.c_void_p(self.lib.convolution_open(i, self.varied))

    def call(self):
        self.lib.convolution_call(self.run)

    def close(self):
        self.lib.convolution_close(self.run)

    def tensor(self, torch, i):
        dims, dtype = (ctypes.c_int64 * 8)(), ctypes.c_int()
        rank = self.lib.convolution_read(self.run, i, dims, ctypes.byref(dtype), None)
        if rank < 0:
            return None
        data = torch.empty(tuple(dims[:rank]), dtype={9: torch.float16, 10: torch.bfloat16, 11: torch.float32}[dtype.value])
        self.lib.convolution_read(self.run, i, dims, ctypes.byref(dtype), ctypes.c_void_p(data.data_ptr()))
        return data


def torch_calls(torch, kind, inputs, stride, pad, groups, causal, window):
    """The ways that PyTorch has to do it, by name."""
    F = torch.nn.functional
    if kind == "attention":
        grouped = {"enable_gqa": True} if inputs[0].shape[1] != inputs[1].shape[1] else {}
        return {"torch": lambda: F.scaled_dot_product_attention(*inputs, is_causal=bool(causal), **grouped)}
    if kind == "gradient":
        params = [x.clone().requires_grad_() for x in inputs[:3]]

        def gradient():
            with torch.enable_grad():
                y = F.scaled_dot_product_attention(*params, is_causal=bool(causal))
                return torch.autograd.grad((y.tanh() * inputs[3]).sum(), params)
        return {"torch": gradient}
    if kind == "conv_gradient":
        def gradients(x, w, g):
            x, w = x.clone(memory_format=torch.preserve_format).requires_grad_(), w.clone(memory_format=torch.preserve_format).requires_grad_()

            def both():
                with torch.enable_grad():
                    y = F.conv2d(x, w, stride=stride, padding=pad, groups=groups)
                    return y.detach(), *torch.autograd.grad(y, (x, w), g)
            return both
        return {"torch": gradients(*inputs), "torch channels last": gradients(*(x.contiguous(memory_format=torch.channels_last) for x in inputs))}
    if kind in ("max_gradient", "avg_gradient"):
        def both(x, g):
            x = x.clone(memory_format=torch.preserve_format).requires_grad_()

            def run():
                with torch.enable_grad():
                    y = F.max_pool2d(x, window, stride, pad) if kind == "max_gradient" else F.avg_pool2d(x, window, stride, pad)
                    return y.detach(), *torch.autograd.grad(y, x, g)
            return run
        return {"torch": both(*inputs), "torch channels last": both(*(x.contiguous(memory_format=torch.channels_last) for x in inputs))}
    if kind == "product":
        return {"torch": lambda: torch.bmm(*inputs)}

    def call(x):
        if kind == "conv":
            return F.conv2d(*x, stride=stride, padding=pad, groups=groups)
        if kind == "max_pool":
            return F.max_pool2d(*x, window, stride, pad)
        return F.avg_pool2d(*x, window, stride, pad)

    last = [x.contiguous(memory_format=torch.channels_last) for x in inputs]
    return {"torch": lambda: call(inputs), "torch channels last": lambda: call(last)}


def main():
    parser = options(__doc__, 2)
    parser.add_argument("--varied", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = arguments(parser)
    try:
        import torch
    except ImportError:
        print("convolution.py: PyTorch is not there")
        return 77
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    kiln, bad, table = Kiln(args.lib, args.threads, args.varied), 0, []
    for i, name, kind, *numbers in kiln.cases():
        if args.names and not any(n in name for n in args.names):
            continue
        kiln.open(i)
        inputs = []
        while (tensor := kiln.tensor(torch, len(inputs))) is not None:
            inputs.append(tensor)
        sides = {"kiln": kiln.call, **torch_calls(torch, kind, inputs, *numbers)}
        kiln.call()
        want = sides["torch"]()
        want = [w.float() for w in (want if isinstance(want, tuple) else (want,))]
        if kind == "max_gradient" and inputs[0].dtype != torch.float32:
            del want[1:]  # equal maxima are many: PyTorch gives one of them all, kiln each its share
        off = max(float((kiln.tensor(torch, -1 - k).float() - w).abs().max() / w.abs().max()) for k, w in enumerate(want))
        wrong = not off < TOLERANCE[str(inputs[0].dtype).split(".")[-1]]
        bad += wrong
        seconds, ratio = turns(sides, args.seconds)
        best = min(ratio.values())
        table.append({"row": name, "seconds": seconds, "ratio": ratio, "off": off})
        print(f"{name:56}" + "  ".join(f"{side} {s * 1e3:.3f} ms" for side, s in seconds.items()) +
              f"  {best:.2f} of kiln's time (results differ by {off:.0e}{', WRONG' if wrong else ''})", flush=True)
        kiln.close()
    return finish(args, table, bad)


if __name__ == "__main__":
    sys.exit(main())
