"""Tries whether a libllama multiplies right, and how fast. Runs in a process of its own.

    python trial.py LIBLLAMA [FOLDER ...]

LIBLLAMA is a path, and each FOLDER may have its back ends as files. Writes one JSON object:
`wrong`, a list of the wrong products, and `seconds`, one thread's processor time by product,
which other busy programs hardly change. The file imports nothing of the package and runs alone,
since a wrong library may end the process.

Products are computed as for a model: in the first of the CPU's buffer types that takes the
weights, so that kernels for weights in another order, such as AMX's, are tried, too.
"""

from __future__ import annotations

import ctypes
import json
import operator
import os
import random
import sys
import time
from array import array
from typing import Any

# Types of weights by their numbers in enum ggml_type.
TYPES = {
    "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11,
    "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23,
}  # fmt: skip
NUM_ROWS = (1, 5, 40)  # of a batch: a token, a draft, a prompt for tiles of 8, 16 or 32 rows
_WIDTH = 512
_NUM_OUTPUTS = 64
_MOST_ERROR = 0.02  # of a product's Euclidean length; rows are rounded to 8 bits

TIMED_TYPES = ("Q4_K", "Q8_0")
TIMED_ROWS = (1, 5, 128)
_TIMED_WIDTH = 2048
_TIMED_OUTPUTS = 16384  # 19 MB of Q4_K
_PATTERN_ROWS = 64  # different rows among these; drawing all at random would take seconds
_TIMED_S = 0.25  # the least time for each product

_LEAST_TIMES = 3  # for each product
_F32 = 0  # of enum ggml_type
_CPU_DEVICE = 0  # of enum ggml_backend_dev_type
_Pointer = ctypes.c_void_p
_Size = ctypes.c_size_t


class _GgmlInitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", _Size), ("mem_buffer", _Pointer), ("no_alloc", ctypes.c_bool))


class Ggml:
    """ggml's CPU back end. Nothing is freed: the process ends soon."""

    def __init__(self, library: str, folders: list[str]) -> None:
        self._library = ctypes.CDLL(library)
        for folder in folders:
            if not self.call("ggml_backend_reg_count"):  # none is built in, or found yet
                self.call("ggml_backend_load_all_from_path", os.fsencode(folder))
        self._cpu = self.call("ggml_backend_dev_by_type", _CPU_DEVICE)
        self._backend = self.call("ggml_backend_dev_init", self._cpu, None)
        address = self._function_of_cpu(b"ggml_backend_set_n_threads")
        set_threads = ctypes.CFUNCTYPE(None, _Pointer, ctypes.c_int)(address)
        set_threads(self._backend, 1)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of ggml. Returns a pointer or a number, both as int; None for 0."""
        function = self._library[name]
        function.restype = _Pointer  # wide enough for numbers, too
        converted = []
        for argument in arguments:
            # ctypes would pass an int in 32 bits, and pointers are ints here, too.
            if isinstance(argument, int):
                argument = _Size(argument)
            converted.append(argument)
        return function(*converted)

    def _function_of_cpu(self, name: bytes) -> Any:
        """The address of a function of the back end that is not in ggml's interface."""
        registry = self.call("ggml_backend_dev_backend_reg", self._cpu)
        return self.call("ggml_backend_reg_get_proc_address", registry, name)

    def _buffer_types(self) -> list[Any]:
        """The CPU's buffer types, the preferred first."""
        address = self._function_of_cpu(b"ggml_backend_dev_get_extra_bufts")
        get_extra = ctypes.CFUNCTYPE(ctypes.POINTER(_Pointer), _Pointer)(address)
        extra = get_extra(self._cpu)
        types: list[Any] = []
        while extra[len(types)] is not None:
            types.append(extra[len(types)])
        types.append(self.call("ggml_backend_dev_buffer_type", self._cpu))
        return types

    def _context(self) -> Any:
        """A new context of ggml, for tensors without data."""
        return self.call("ggml_init", _GgmlInitParams(mem_size=1 << 20, no_alloc=True))

    def _tensor(
        self,
        context: Any,
        kind: int,
        width: int,
        num_rows: int,
    ) -> Any:
        """A new tensor of a type (a number of enum ggml_type) in a context."""
        return self.call("ggml_new_tensor_2d", context, kind, width, num_rows)

    def quantized(self, kind: int, values: array[float], width: int) -> bytes:
        """Values in a type of weights, as rows of `width` values.

        Args:
            kind: The type's number in enum ggml_type.
        """
        num_rows = len(values) // width
        row_bytes = self.call("ggml_row_size", kind, width)
        space = ctypes.create_string_buffer(num_rows * row_bytes)
        first = _Pointer(values.buffer_info()[0])
        self.call("ggml_quantize_chunk", kind, first, space, 0, num_rows, width, None)
        return space.raw

    def graph_of_product(
        self,
        kind: int,
        weights: bytes,
        batch: array[float],
        width: int,
    ) -> tuple[Any, Any]:
        """A graph that multiplies a batch with weights, and the tensor of the product.

        The weights are in the first of the CPU's buffer types that has a kernel for them.

        Args:
            kind: The type of the weights, as a number of enum ggml_type.
            weights: Rows of `width` weights: one for each output.
            batch: Rows of `width` values.
        """
        num_outputs = len(weights) // self.call("ggml_row_size", kind, width)
        graph_context = self._context()
        for buffer_type in self._buffer_types():
            weights_context = self._context()
            weight = self._tensor(weights_context, kind, width, num_outputs)
            allocate = "ggml_backend_alloc_ctx_tensors_from_buft"
            self.call(allocate, weights_context, buffer_type)
            batch_rows = self._tensor(graph_context, _F32, width, len(batch) // width)
            product = self.call("ggml_mul_mat", graph_context, weight, batch_rows)
            if self._computes(product):
                break
        self.call("ggml_backend_tensor_set", weight, weights, 0, len(weights))
        return self._graph(graph_context, product, batch_rows, batch), product

    def _computes(self, result: Any) -> bool:
        """Whether the CPU has a kernel for the operation that gives the result.

        That depends on the buffer of the weights.
        """
        prototype = ctypes.CFUNCTYPE(ctypes.c_bool, _Pointer, _Pointer)
        supports = prototype(("ggml_backend_dev_supports_op", self._library))
        is_supported: bool = supports(self._cpu, result)
        return is_supported

    def _graph(
        self,
        context: Any,
        result: Any,
        rows: Any,
        batch: array[float],
    ) -> Any:
        """The graph that computes a result from `rows`, into which the batch is written."""
        graph = self.call("ggml_new_graph", context)
        self.call("ggml_build_forward_expand", graph, result)
        self.call("ggml_backend_alloc_ctx_tensors", context, self._backend)
        data = batch.tobytes()
        self.call("ggml_backend_tensor_set", rows, data, 0, len(data))
        return graph

    def compute(self, graph: Any) -> None:
        """Compute all tensors of a graph."""
        self.call("ggml_backend_graph_compute", self._backend, graph)

    def values_of(self, tensor: Any, length: int) -> array[float]:
        """The first `length` numbers of a tensor of 32-bit floats."""
        values = array("f", bytes(4 * length))
        first, _ = values.buffer_info()
        self.call("ggml_backend_tensor_get", tensor, _Pointer(first), 0, 4 * length)
        return values

    def as_floats(self, kind: int, weights: bytes, width: int) -> array[float]:
        """The numbers that weights stand for, by the library's own conversion."""
        num_rows = len(weights) // self.call("ggml_row_size", kind, width)
        context = self._context()
        weight = self._tensor(context, kind, width, num_rows)
        floats = self.call("ggml_cast", context, weight, _F32)
        graph = self.call("ggml_new_graph", context)
        self.call("ggml_build_forward_expand", graph, floats)
        self.call("ggml_backend_alloc_ctx_tensors", context, self._backend)
        self.call("ggml_backend_tensor_set", weight, weights, 0, len(weights))
        self.compute(graph)
        return self.values_of(floats, width * num_rows)


def random_values(length: int, seed: int) -> array[float]:
    """Numbers around zero, the same in each process."""
    source = random.Random(seed)
    return array("f", (source.gauss(0.0, 1.0) for _ in range(length)))


def wrong_products(ggml: Ggml) -> list[str]:
    """The products that differ by more than rounding from those of Python, in words."""
    wrong = []
    values = random_values(_WIDTH * _NUM_OUTPUTS, seed=1)
    for name, kind in TYPES.items():
        weights = ggml.quantized(kind, values, _WIDTH)
        float_weights = ggml.as_floats(kind, weights, _WIDTH)
        for num_rows in NUM_ROWS:
            batch = random_values(_WIDTH * num_rows, seed=2)
            graph, product = ggml.graph_of_product(kind, weights, batch, _WIDTH)
            ggml.compute(graph)
            computed = ggml.values_of(product, _NUM_OUTPUTS * num_rows)
            if not _are_near(computed, _multiplied(float_weights, batch)):
                wrong.append(f"{name}, {num_rows} rows")
    return wrong


def _multiplied(weights: array[float], batch: array[float]) -> list[float]:
    """The exact product: for each row of the batch, one number for each output."""
    products = []
    for row_begin in range(0, len(batch), _WIDTH):
        row = batch[row_begin : row_begin + _WIDTH]
        for begin in range(0, len(weights), _WIDTH):
            output_weights = weights[begin : begin + _WIDTH]
            products.append(sum(map(operator.mul, output_weights, row)))
    return products


def _are_near(computed: array[float], expected: list[float]) -> bool:
    """Whether two products differ by rounding only."""
    differences = map(operator.sub, computed, expected)
    error: float = sum(difference**2 for difference in differences)
    square = sum(value**2 for value in expected)
    return error < _MOST_ERROR**2 * square  # false for NaN


def timed_products(ggml: Ggml) -> dict[str, float]:
    """The least processor time of each product, in seconds, by type and number of rows."""
    seconds = {}
    pattern = random_values(_TIMED_WIDTH * _PATTERN_ROWS, seed=3)
    for name in TIMED_TYPES:
        kind = TYPES[name]
        pattern_rows = ggml.quantized(kind, pattern, _TIMED_WIDTH)
        weights = pattern_rows * (_TIMED_OUTPUTS // _PATTERN_ROWS)
        for num_rows in TIMED_ROWS:
            batch = random_values(_TIMED_WIDTH * num_rows, seed=4)
            graph, _ = ggml.graph_of_product(kind, weights, batch, _TIMED_WIDTH)
            seconds[f"{name}, {num_rows} rows"] = _timed(ggml, graph)
    return seconds


def _timed(ggml: Ggml, graph: Any) -> float:
    """The least processor time of a graph, in seconds."""
    ggml.compute(graph)  # the first one touches the weights
    times: list[float] = []
    while len(times) < _LEAST_TIMES or sum(times) < _TIMED_S:
        started_s = time.process_time()
        ggml.compute(graph)
        times.append(time.process_time() - started_s)
    return min(times)


def main(library: str, *folders: str) -> None:
    """Try the library, and write the results to standard output, as JSON."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # leave no core file
    ggml = Ggml(library, list(folders))
    results = {"wrong": wrong_products(ggml), "seconds": timed_products(ggml)}
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
