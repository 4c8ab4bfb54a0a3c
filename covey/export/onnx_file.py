"""Writes a graph as an ONNX model, opset 18. Needs the package `onnx`."""

from typing import Any

import numpy as np

from covey.export.graph import BATCH, Graph, Node, Value

OPSET, IR = 18, 8
"""Versions that every onnxruntime since 1.14 reads."""
SIMPLE = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "power": "Pow",
    "negative": "Neg",
    "abs": "Abs",
    "sign": "Sign",
    "exp": "Exp",
    "log": "Log",
    "tanh": "Tanh",
    "logistic": "Sigmoid",
    "sqrt": "Sqrt",
    "sin": "Sin",
    "cos": "Cos",
    "floor": "Floor",
    "ceil": "Ceil",
    "rint": "Round",
    "erf": "Erf",
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_not": "Not",
    "matmul": "MatMul",
}
"""Operations that ONNX has under another name."""


def onnx_model(graph: Graph, about: dict[str, str]) -> bytes:
    """Returns a graph as an ONNX model.

    Args:
        graph: The graph.
        about: Metadata, by key.

    Returns:
        The serialised model. Its inputs are those of the graph; its outputs are `action` and `memory.*_out`.
    """
    import onnx
    from onnx import helper, numpy_helper

    writer = _Writer(graph)
    for node in graph.nodes:
        writer.write(node)
    outputs = []
    for name, source in graph.outputs.items():
        shown = name if name == "action" else f"{name}_out"
        writer.add("Identity", [source], shown)
        outputs.append(_info(shown, writer.output_of(source)))
    read = {name for node in writer.nodes for name in node.input}
    constants = {name: x for name, x in (graph.constants | writer.constants).items() if name in read}
    model = helper.make_model(
        helper.make_graph(
            writer.nodes,
            "policy",
            [_info(name, value) for name, value in graph.inputs.items()],
            outputs,
            [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="covey",
    )
    helper.set_model_props(model, about)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _info(name: str, value: Value) -> Any:
    from onnx import helper

    shape = ["batch" if size == BATCH else size for size in value.shape]
    return helper.make_tensor_value_info(name, _type(value.dtype), shape)


def _type(dtype: str) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


class _Writer:
    """Collects the nodes and the further constants of a model."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.dtypes = {node.output.name: node.output.dtype for node in graph.nodes}

    def output_of(self, name: str) -> Value:
        """Returns an input or a result of the graph."""
        return self.graph.value(name)

    def add(self, op: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        """Adds a node of ONNX. Returns the name of its result."""
        from onnx import helper

        output = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """Adds a constant. Returns its name."""
        array = np.asarray(values, dtype)
        name = f"k{array.dtype.str[1:]}_" + "_".join(map(str, array.ravel())) + f"_{array.ndim}"
        self.constants[name] = array
        return name

    def write(self, node: Node) -> None:
        """Adds one operation of the graph."""
        inputs, output = list(node.inputs), node.output.name
        if node.op in SIMPLE:
            self.add(SIMPLE[node.op], inputs, output)
        else:
            getattr(self, f"_{node.op}")(inputs, output, node)

    def _log1p(self, inputs: list[str], output: str, node: Node) -> None:
        self.add("Log", [self.add("Add", [*inputs, self.constant(1.0, np.float32)])], output)

    def _expm1(self, inputs: list[str], output: str, node: Node) -> None:
        self.add("Sub", [self.add("Exp", inputs), self.constant(1.0, np.float32)], output)

    def _isfinite(self, inputs: list[str], output: str, node: Node) -> None:
        self.add("Not", [self.add("Or", [self.add("IsInf", inputs), self.add("IsNaN", inputs)])], output)

    def _not_equal(self, inputs: list[str], output: str, node: Node) -> None:
        self.add("Not", [self.add("Equal", inputs)], output)

    def _where(self, inputs: list[str], output: str, node: Node) -> None:
        if node.output.dtype != "bool":
            self.add("Where", inputs, output)
            return
        chosen, yes, no = inputs  # onnxruntime has no Where on booleans
        first = self.add("And", [chosen, yes])
        self.add("Or", [first, self.add("And", [self.add("Not", [chosen]), no])], output)

    def _cast(self, inputs: list[str], output: str, node: Node) -> None:
        self.add("Cast", inputs, output, to=_type(node.output.dtype))

    def _bfloat16(self, inputs: list[str], output: str, node: Node) -> None:
        from onnx import TensorProto

        self.add("Cast", [self.add("Cast", inputs, to=TensorProto.BFLOAT16)], output, to=TensorProto.FLOAT)

    def _reshape(self, inputs: list[str], output: str, node: Node) -> None:
        self.add("Reshape", [*inputs, self.constant(node.attributes["to"])], output)

    def _expand(self, inputs: list[str], output: str, node: Node) -> None:
        sizes = node.attributes["to"]
        at = sizes.index(BATCH) if BATCH in sizes else len(sizes)
        shape = self.constant(sizes)
        if at < len(sizes):
            batch = self.add("Shape", [inputs[1]], start=0, end=1)
            parts = [self.constant(x) for x in (sizes[:at], sizes[at + 1 :])]
            shape = self.add("Concat", [parts[0], batch, parts[1]], axis=0)
        self.add("Expand", [inputs[0], shape], output)

    def _transpose(self, inputs: list[str], output: str, node: Node) -> None:
        self.add("Transpose", inputs, output, perm=node.attributes["axes"])

    def _concatenate(self, inputs: list[str], output: str, node: Node) -> None:
        self.add("Concat", inputs, output, axis=node.attributes["axis"])

    def _take(self, inputs: list[str], output: str, node: Node) -> None:
        self.add("Gather", inputs, output, axis=node.attributes["axis"])

    def _slice(self, inputs: list[str], output: str, node: Node) -> None:
        whole = np.iinfo(np.int64).max
        stop = [whole if end is None else end for end in node.attributes["stop"]]
        axes = list(range(len(stop)))
        parts = [self.constant(x) for x in (node.attributes["start"], stop, axes, node.attributes["step"])]
        self.add("Slice", [*inputs, *parts], output)

    def _reduce(self, op: str, inputs: list[str], output: str, node: Node) -> None:
        self.add(op, [*inputs, self.constant(node.attributes["axes"])], output, keepdims=0)

    def _reduce_sum(self, inputs: list[str], output: str, node: Node) -> None:
        self._reduce("ReduceSum", inputs, output, node)

    def _reduce_max(self, inputs: list[str], output: str, node: Node) -> None:
        self._reduce("ReduceMax", inputs, output, node)

    def _reduce_min(self, inputs: list[str], output: str, node: Node) -> None:
        self._reduce("ReduceMin", inputs, output, node)

    def _argmax(self, inputs: list[str], output: str, node: Node) -> None:
        self._index("ArgMax", inputs, output, node)

    def _argmin(self, inputs: list[str], output: str, node: Node) -> None:
        self._index("ArgMin", inputs, output, node)

    def _conv(self, inputs: list[str], output: str, node: Node) -> None:
        """Adds a convolution. ONNX wants the channels first."""
        x, kernel = inputs
        if kernel in self.graph.constants:
            name = f"{kernel}_first"
            self.constants[name] = np.ascontiguousarray(self.graph.constants[kernel].transpose(3, 2, 0, 1))
        else:
            name = self.add("Transpose", [kernel], perm=[3, 2, 0, 1])
        self._on_images("Conv", [x, name], output, node)

    def _max_pool(self, inputs: list[str], output: str, node: Node) -> None:
        self._on_images("MaxPool", inputs, output, node, kernel_shape=node.attributes["window"])

    def _sum_pool(self, inputs: list[str], output: str, node: Node) -> None:
        window = node.attributes["window"]
        mean = self._on_images("AveragePool", inputs, "", node, kernel_shape=window, count_include_pad=1)
        self.add("Mul", [mean, self.constant(np.prod(window), np.float32)], output)

    def _on_images(self, op: str, inputs: list[str], output: str, node: Node, **attributes: Any) -> str:
        """Adds a node on images with the channels first, between two transpositions. Returns the name of the result."""
        first = self.add("Transpose", inputs[:1], perm=[0, 3, 1, 2])
        (top, bottom), (left, right) = node.attributes["padding"]
        how = {"strides": node.attributes["strides"], "pads": [top, left, bottom, right], **attributes}
        return self.add("Transpose", [self.add(op, [first, *inputs[1:]], **how)], output, perm=[0, 2, 3, 1])

    def _index(self, op: str, inputs: list[str], output: str, node: Node) -> None:
        found = self.add(op, inputs, axis=node.attributes["axis"], keepdims=0)
        self.add("Cast", [found], output, to=_type(node.output.dtype))
