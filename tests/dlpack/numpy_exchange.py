"""numpy_exchange.py LIBRARY: arrays of NumPy go to kiln and come back by DLPack and in files, through ctypes and no binding.

Without NumPy (Debian: python3-numpy) it says so and ends with 77.
"""
import ctypes
import gc
import os
import sys

try:
    import numpy
except ImportError:
    print("python3-numpy is not installed: nothing was tested")
    sys.exit(77)

kiln = ctypes.CDLL(sys.argv[1])
python = ctypes.pythonapi
pointer, text = ctypes.c_void_p, ctypes.c_char_p


def declare(library, name, result, *arguments):
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


new_capsule = declare(python, "PyCapsule_New", ctypes.py_object, pointer, text, pointer)
capsule_pointer = declare(python, "PyCapsule_GetPointer", pointer, ctypes.py_object, text)
rename_capsule = declare(python, "PyCapsule_SetName", ctypes.c_int, ctypes.py_object, text)
message = declare(kiln, "kiln_error_message", text)
from_dlpack = declare(kiln, "kiln_from_dlpack_unversioned", pointer, pointer, ctypes.c_int64)
to_dlpack = declare(kiln, "kiln_to_dlpack_unversioned", ctypes.c_int, pointer, ctypes.c_int64, ctypes.POINTER(pointer))
add = declare(kiln, "kiln_add", pointer, pointer, pointer)
scope_begin = declare(kiln, "kiln_scope_begin", pointer)
scope_end = declare(kiln, "kiln_scope_end", None, pointer)

OLD, USED = b"dltensor", b"used_dltensor"


def to_kiln(array):
    """An array as a tensor; the capsule's owner is kiln then, as the protocol has it."""
    capsule = array.__dlpack__()
    tensor = from_dlpack(capsule_pointer(capsule, OLD), -1)
    assert tensor, message().decode()
    assert rename_capsule(capsule, USED) == 0
    return tensor


class Tensor:
    """What numpy.from_dlpack asks."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, stream=None):
        out = pointer()
        assert to_dlpack(self.tensor, -1, ctypes.byref(out)) == 0, message().decode()
        return new_capsule(out, OLD, None)


def to_numpy(tensor):
    return numpy.from_dlpack(Tensor(tensor))


checked = 0
for dtype in "i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split():
    base = numpy.arange(24).astype(dtype).reshape(2, 3, 4)
    for array in (base, base.T, base[::-1, 1:, ::2], base[:, 0, 3], base[:0], base[1, 2, 3:4].reshape(())):
        scope = scope_begin()
        tensor = to_kiln(array)
        back = to_numpy(tensor)
        assert back.dtype == array.dtype and back.shape == array.shape, (dtype, array.shape)
        assert (back == array).all()
        if array.size:
            assert back.__array_interface__["data"][0] == array.__array_interface__["data"][0], "it was copied"
        double = to_numpy(add(tensor, tensor))
        scope_end(scope)
        gc.collect()  # what NumPy has left keeps the memory, though kiln let go
        assert (double == array + array).all() and double.shape == array.shape, dtype
        checked += 1

# Archives, both ways.
class Named(ctypes.Structure):
    _fields_ = [("name", text), ("tensor", pointer)]


load_npz = declare(kiln, "kiln_load_npz", pointer, text)
save_npz = declare(kiln, "kiln_save_npz", ctypes.c_int, text, ctypes.c_int, ctypes.POINTER(Named), ctypes.c_bool)
file_tensor = declare(kiln, "kiln_file_tensor", pointer, pointer, text)
file_free = declare(kiln, "kiln_file_free", None, pointer)
arrays = {"a": numpy.arange(12.0).reshape(3, 4), "b/c": numpy.arange(5, dtype=">i4"), "d": numpy.asfortranarray(numpy.eye(3, dtype="f2"))}
path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"kiln_numpy_{os.getpid()}.npz")
for write, compressed in ((numpy.savez, False), (numpy.savez_compressed, True)):
    scope = scope_begin()
    write(path, **arrays)
    archive = load_npz(path.encode())
    assert archive, message().decode()
    tensors = [(name, file_tensor(archive, name.encode())) for name in arrays]
    for name, tensor in tensors:
        assert tensor, message().decode()
        assert (to_numpy(tensor) == arrays[name]).all(), name
    named = (Named * len(tensors))(*[Named(name.encode(), tensor) for name, tensor in tensors])
    assert save_npz(path.encode(), len(tensors), named, compressed) == 0, message().decode()
    with numpy.load(path) as back:
        assert sorted(back) == sorted(arrays)
        for name in arrays:
            assert (back[name] == arrays[name]).all() and back[name].dtype.kind == arrays[name].dtype.kind, name
    file_free(archive)
    scope_end(scope)
    os.remove(path)

# NumPy's array lives as long as kiln needs it, and no longer.
array = numpy.ones(1000, "f4")
count = sys.getrefcount(array)
scope = scope_begin()
tensor = to_kiln(array)
assert sys.getrefcount(array) == count + 1, "nobody holds the array"
scope_end(scope)
assert sys.getrefcount(array) == count, "the array is held for ever"
print(f"NumPy {numpy.__version__}: {checked} arrays there and back")
