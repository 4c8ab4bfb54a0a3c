"""Writes a graph as a C header: static arrays and one function, no allocation, no library but math.h."""

from typing import Any

import numpy as np

from covey.export.graph import Graph, Node
from covey.export.names import c_input_names, c_name

TYPES = {"float32": "float", "int32": "int32_t", "uint8": "uint8_t", "bool": "uint8_t"}
LIMITS = {"float32": ("-INFINITY", "INFINITY"), "int32": ("INT32_MIN", "INT32_MAX"), "uint8": ("0", "255")}
"""The lowest and the highest number of a type."""
EXPRESSIONS = {
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "divide": "{0} / {1}",
    "power": "powf({0}, {1})",
    "negative": "-{0}",
    "sign": "({0} > 0) - ({0} < 0)",
    "exp": "expf({0})",
    "log": "logf({0})",
    "log1p": "log1pf({0})",
    "expm1": "expm1f({0})",
    "tanh": "tanhf({0})",
    "logistic": "1.0f / (1.0f + expf(-{0}))",
    "sqrt": "sqrtf({0})",
    "sin": "sinf({0})",
    "cos": "cosf({0})",
    "floor": "floorf({0})",
    "ceil": "ceilf({0})",
    "rint": "rintf({0})",
    "erf": "erff({0})",
    "isfinite": "isfinite({0}) ? 1 : 0",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
    "where": "{0} ? {1} : {2}",
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "logical_not": "!{0}",
    "expand": "{0}",
}
"""Operations on each element."""
BY_TYPE = {
    "abs": ("fabsf({0})", "{0} < 0 ? -{0} : {0}"),
    "maximum": ("({0} > {1} || isnan({0})) ? {0} : {1}", "{0} > {1} ? {0} : {1}"),
    "minimum": ("({0} < {1} || isnan({0})) ? {0} : {1}", "{0} < {1} ? {0} : {1}"),
}
"""Operations that C writes in one way for floats, without losing NaN, and in another for whole numbers."""
HEADER = """\
/* A policy written by covey. One thread at a time may use it: its working arrays are static.

   {name}_memory memory;
   {name}_reset(&memory);                  at the start of each episode
   {name}_act({call}&memory, action);   {shown}action[{action}] in the units of the environment

{about}
*/
#ifndef {guard}
#define {guard}

#include <math.h>
#include <stdint.h>
#include <string.h>

{sizes}
#define {guard}_ACTION {action}
"""


def c_header(graph: Graph, start: dict[str, np.ndarray], name: str, about: str) -> str:
    """Returns a graph without a batch as a C header.

    Args:
        graph: The graph of one observation.
        start: The memory at the start of an episode, by name.
        name: Prefix of what the header defines.
        about: Text for the comment at its top.

    Returns:
        The text of the header. It defines `NAME_memory`, `NAME_reset` and `NAME_act`.
    """
    writer = _Writer(graph)
    memory = [each for each in graph.inputs if each.startswith("memory.")]
    noise = list(graph.kinds)
    fields = [f"  {TYPES[graph.inputs[m].dtype]} {c_name(m)}[{_length(graph.inputs[m].shape)}];" for m in memory]
    arguments = "".join(f"const {TYPES[graph.inputs[each].dtype]} *{own}, " for each, own in writer.parts.items())
    arguments += "".join(f"const float *{c_name(each)}, " for each in noise)
    lines = [
        writer.header(name, about),
        f"typedef struct {{\n{chr(10).join(fields) or '  uint8_t unused;'}\n}} {name}_memory;\n",
        *(writer.array(each, x) for each, x in graph.constants.items()),
        f"static inline void {name}_reset({name}_memory *memory) {{",
        *(_first(m, start[m]) for m in memory),
        *([] if memory else ["  memory->unused = 0;"]),
        "}\n",
        f"static inline void {name}_act({arguments}{name}_memory *memory, float *action) {{",
        *([] if memory else ["  (void)memory;"]),
        *(f"  static {TYPES[n.output.dtype]} {n.output.name}[{_length(n.output.shape)}];" for n in writer.stored()),
        *(line for node in graph.nodes for line in writer.node(node)),
        *_copied(writer, memory),
        "}\n\n#endif",
    ]
    return "\n".join(lines) + "\n"


def _copied(writer: "_Writer", memory: list[str]) -> list[str]:
    """Returns the lines that copy the results out. The memory is read by all operations before it changes."""
    sources = {name: writer.graph.outputs[name] for name in memory}
    changed = {name: source for name, source in sources.items() if source != name}
    lines = [f"  memcpy(action, {writer.at(writer.graph.outputs['action'])}, sizeof(float) * {writer.actions});"]
    for name, source in changed.items():
        field = f"memory->{c_name(name)}"
        lines.append(f"  memcpy({field}, {writer.at(source)}, sizeof({field}));")
    return lines


def _first(name: str, start: np.ndarray) -> str:
    """Returns the lines that set one part of the memory to its first value."""
    numbers = enumerate(np.asarray(start).ravel())
    return "\n".join(f"  memory->{c_name(name)}[{i}] = {_number(x)};" for i, x in numbers)


def _length(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=int))


def _number(x: Any) -> str:
    """Returns a number as C writes it, without loss."""
    if isinstance(x, np.bool_ | np.integer):
        return str(int(x))
    if not np.isfinite(x):
        return "NAN" if np.isnan(x) else f"{'-' if x < 0 else ''}INFINITY"
    text = f"{float(x):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _loops(sizes: tuple[int, ...], body: str) -> list[str]:
    """Returns nested loops over i0, i1, ... around one statement."""
    heads = [f"for (int i{a} = 0; i{a} < {size}; i{a}++)" for a, size in enumerate(sizes) if size > 1]
    return [f"  {' '.join([*heads, body])}"]


def _index(shape: tuple[int, ...], loops: list[str]) -> str:
    """Returns the position of an element, for one index per axis; an axis of one element needs none."""
    stride = 1
    terms = []
    for size, loop in zip(reversed(shape), reversed(loops), strict=True):
        if size > 1:
            terms.append(loop if stride == 1 else f"({loop}) * {stride}")
        stride *= size
    return " + ".join(reversed(terms)) or "0"


class _Writer:
    """Writes the operations of a graph as loops."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.actions = _length(self.shape(graph.outputs["action"]))
        self.parts = c_input_names(n for n in graph.inputs if not n.startswith(("memory.", "noise.")))
        """The C names of the inputs for the observation."""
        self.aliases = {n.output.name: n.inputs[0] for n in graph.nodes if n.op == "reshape"}

    def header(self, name: str, about: str) -> str:
        """Returns the top of the header: how to use it, the contract, and the sizes."""
        inputs = self.graph.inputs
        sizes = {own: _length(inputs[each].shape) for each, own in self.parts.items()}
        kinds = {own: TYPES[inputs[each].dtype] for each, own in self.parts.items()}
        shown = ", ".join(f"{kinds[own]} {own}[{size}]" for own, size in sizes.items())
        same = set(kinds.values()) == {"float"} and len(kinds) == 1
        return HEADER.format(
            name=name,
            guard=name.upper(),
            call="".join(f"{each}, " for each in (*sizes, *map(c_name, self.graph.kinds))),
            shown=f"{shown}, " if same else f"{shown}, float ",
            sizes="\n".join(f"#define {name.upper()}_{own.upper()} {size}" for own, size in sizes.items()),
            action=self.shape(self.graph.outputs["action"])[0],
            about="\n".join(f"   {line}" for line in about.replace("*/", "* /").splitlines()),
        )

    def stored(self) -> list[Node]:
        """Returns the operations whose results need an array: a reshape does not."""
        return [node for node in self.graph.nodes if node.op != "reshape"]

    def array(self, name: str, x: np.ndarray) -> str:
        """Returns a constant."""
        numbers = [_number(each) for each in x.ravel()]
        rows = [", ".join(numbers[i : i + 8]) for i in range(0, len(numbers), 8)]
        kind = TYPES[str(x.dtype)]
        return f"static const {kind} {name}[{x.size}] = {{\n  {(',' + chr(10) + '  ').join(rows)}\n}};\n"

    def at(self, name: str) -> str:
        """Returns the C name of a value."""
        while name in self.aliases:
            name = self.aliases[name]
        if name.startswith("memory."):
            return f"memory->{c_name(name)}"
        return c_name(name) if name.startswith("noise.") else self.parts.get(name, name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a value or a constant."""
        return self.graph.constants[name].shape if name in self.graph.constants else self.graph.value(name).shape

    def node(self, node: Node) -> list[str]:
        """Returns the lines of one operation."""
        if node.op == "reshape":
            return []
        if node.op in EXPRESSIONS or node.op in BY_TYPE or node.op in ("cast", "bfloat16"):
            return self._elementwise(node)
        return getattr(self, f"_{node.op}")(node)

    def _elementwise(self, node: Node) -> list[str]:
        shape = node.output.shape
        inputs = node.inputs[:1] if node.op == "expand" else node.inputs
        terms = []
        for name in inputs:
            own = self.shape(name)
            loops = [f"i{axis}" for axis in range(len(shape) - len(own), len(shape))]
            terms.append(f"{self.at(name)}[{_index(own, loops)}]")
        kind = node.output.dtype
        expression = EXPRESSIONS.get(node.op, "")
        if node.op in BY_TYPE:
            expression = BY_TYPE[node.op][kind != "float32"]
        elif node.op == "cast":
            expression = "{0} != 0" if kind == "bool" else f"({TYPES[kind]}){{0}}"
        if node.op == "bfloat16":
            return self._bfloat16(node, terms[0])
        position = _index(shape, [f"i{axis}" for axis in range(len(shape))])
        return _loops(shape, f"{node.output.name}[{position}] = {expression.format(*terms)};")

    def _bfloat16(self, node: Node, term: str) -> list[str]:
        shape, out = node.output.shape, node.output.name
        position = _index(shape, [f"i{axis}" for axis in range(len(shape))])
        body = (
            f"{{ uint32_t bits; float x = {term}; memcpy(&bits, &x, 4); "
            f"bits = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u; memcpy(&{out}[{position}], &bits, 4); }}"
        )
        return _loops(shape, body)

    def _matmul(self, node: Node) -> list[str]:
        left, right = node.inputs
        (*batch, rows, inner), columns = self.shape(left), self.shape(right)[-1]
        out = node.output.name
        first, second, third = (f"b * {n} + " if batch else "" for n in (rows * inner, inner * columns, rows * columns))
        body = [
            f"  for (int i = 0; i < {rows}; i++) {{",
            f"    float *y = &{out}[{third}i * {columns}];",
            f"    memset(y, 0, sizeof(float) * {columns});",
            f"    for (int k = 0; k < {inner}; k++) {{",
            f"      const float x = {self.at(left)}[{first}i * {inner} + k];",
            f"      const float *w = &{self.at(right)}[{second}k * {columns}];",
            f"      for (int j = 0; j < {columns}; j++) y[j] += x * w[j];",
            "    }",
            "  }",
        ]
        return [f"  for (int b = 0; b < {_length(tuple(batch))}; b++)", *body] if batch else body

    def _transpose(self, node: Node) -> list[str]:
        source, axes, shape = node.inputs[0], node.attributes["axes"], node.output.shape
        loops = [""] * len(axes)
        for position, axis in enumerate(axes):
            loops[axis] = f"i{position}"
        target = _index(shape, [f"i{axis}" for axis in range(len(shape))])
        term = f"{self.at(source)}[{_index(self.shape(source), loops)}]"
        return _loops(shape, f"{node.output.name}[{target}] = {term};")

    def _concatenate(self, node: Node) -> list[str]:
        lines = []
        start = 0
        axis = node.attributes["axis"]
        for name in node.inputs:
            own = self.shape(name)
            loops = [f"i{a}" for a in range(len(own))]
            term = f"{self.at(name)}[{_index(own, loops)}]"
            here = [f"{start} + {self._loop(own, a)}" if a == axis else loop for a, loop in enumerate(loops)]
            lines += _loops(own, f"{node.output.name}[{_index(node.output.shape, here)}] = {term};")
            start += own[axis]
        return lines

    def _loop(self, shape: tuple[int, ...], axis: int) -> str:
        """Returns the index of an axis; 0 if it has one element, and so no loop."""
        return f"i{axis}" if shape[axis] > 1 else "0"

    def _slice(self, node: Node) -> list[str]:
        shape = node.output.shape
        starts, steps = node.attributes["start"], node.attributes["step"]
        loops = [f"{b} + {s} * {self._loop(shape, a)}" for a, (b, s) in enumerate(zip(starts, steps, strict=True))]
        term = f"{self.at(node.inputs[0])}[{_index(self.shape(node.inputs[0]), loops)}]"
        position = _index(shape, [f"i{axis}" for axis in range(len(shape))])
        return _loops(shape, f"{node.output.name}[{position}] = {term};")

    def _take(self, node: Node) -> list[str]:
        source, indices = node.inputs
        axis, own, rank = node.attributes["axis"], self.shape(source), len(self.shape(indices))
        shape = node.output.shape
        loops = [self._loop(shape, a) for a in range(len(shape))]
        which = f"{self.at(indices)}[{_index(self.shape(indices), loops[axis : axis + rank])}]"
        at = [*loops[:axis], which, *loops[axis + rank :]]
        position = _index(shape, loops)
        return _loops(shape, f"{node.output.name}[{position}] = {self.at(source)}[{_index(own, at)}];")

    def _reduction(self, node: Node, axes: list[int], first: str, step: str) -> list[str]:
        """Returns loops that start a result with the first element and continue with `step`."""
        source = self.shape(node.inputs[0])
        kept = [a for a in range(len(source)) if a not in axes]
        position = _index(node.output.shape, [f"i{a}" for a in kept])
        out = f"{node.output.name}[{position}]"
        names = [f"i{a}" for a in range(len(source))]
        x = f"{self.at(node.inputs[0])}[{_index(source, names)}]"
        begin = [f"for (int i{a} = 0; i{a} < {source[a]}; i{a}++)" for a in kept if source[a] > 1]
        through = [f"for (int i{a} = 0; i{a} < {source[a]}; i{a}++)" for a in axes if source[a] > 1]
        body = f"{out} = {first}; {' '.join([*through, step.format(out=out, x=x)])}"
        return [f"  {' '.join([*begin, '{', body, '}'])}"]

    def _reduce_sum(self, node: Node) -> list[str]:
        return self._reduction(node, node.attributes["axes"], "0", "{out} += {x};")

    def _reduce_max(self, node: Node) -> list[str]:
        return self._reduction(
            node, node.attributes["axes"], LIMITS[node.output.dtype][0], "if ({x} > {out}) {out} = {x};"
        )

    def _reduce_min(self, node: Node) -> list[str]:
        return self._reduction(
            node, node.attributes["axes"], LIMITS[node.output.dtype][1], "if ({x} < {out}) {out} = {x};"
        )

    def _conv(self, node: Node) -> list[str]:
        channels, outputs = self.shape(node.inputs[1])[2:]
        columns = self.shape(node.inputs[1])[1]
        body = [
            f"      const float *w = &{self.at(node.inputs[1])}[(a * {columns} + b) * {channels * outputs}];",
            f"      for (int k = 0; k < {channels}; k++)",
            f"        for (int j = 0; j < {outputs}; j++) y[j] += x[k] * w[k * {outputs} + j];",
        ]
        return self._windows(node, self.shape(node.inputs[1])[:2], "0.0f", body)

    def _max_pool(self, node: Node) -> list[str]:
        body = [f"      for (int j = 0; j < {node.output.shape[3]}; j++) if (x[j] > y[j]) y[j] = x[j];"]
        return self._windows(node, node.attributes["window"], "-INFINITY", body)

    def _sum_pool(self, node: Node) -> list[str]:
        body = [f"      for (int j = 0; j < {node.output.shape[3]}; j++) y[j] += x[j];"]
        return self._windows(node, node.attributes["window"], "0.0f", body)

    def _windows(self, node: Node, window: Any, first: str, body: list[str]) -> list[str]:
        """Returns loops over the windows of images [N, H, W, C]: `body` adds one pixel `x` to one result `y`."""
        count, height, width, channels = self.shape(node.inputs[0])
        _, rows, columns, outputs = node.output.shape
        (down, right), ((top, _), (left, _)) = node.attributes["strides"], node.attributes["padding"]
        return [
            f"  for (int n = 0; n < {count}; n++) for (int p = 0; p < {rows}; p++)",
            f"  for (int q = 0; q < {columns}; q++) {{",
            f"    float *y = &{node.output.name}[((n * {rows} + p) * {columns} + q) * {outputs}];",
            f"    for (int j = 0; j < {outputs}; j++) y[j] = {first};",
            f"    for (int a = 0; a < {window[0]}; a++) for (int b = 0; b < {window[1]}; b++) {{",
            f"      const int r = p * {down} + a - {top}, s = q * {right} + b - {left};",
            f"      if (r < 0 || r >= {height} || s < 0 || s >= {width}) continue;",
            f"      const float *x = &{self.at(node.inputs[0])}[((n * {height} + r) * {width} + s) * {channels}];",
            *body,
            "    }",
            "  }",
        ]

    def _argmax(self, node: Node) -> list[str]:
        return self._position_of(node, ">")

    def _argmin(self, node: Node) -> list[str]:
        return self._position_of(node, "<")

    def _position_of(self, node: Node, sign: str) -> list[str]:
        source, axis = self.shape(node.inputs[0]), node.attributes["axis"]
        names = [f"i{a}" for a in range(len(source))]
        best = [*names[:axis], "{out}", *names[axis + 1 :]]
        old = f"{self.at(node.inputs[0])}[{_index(source, best)}]"
        return self._reduction(node, [axis], "0", f"if ({{x}} {sign} {old}) {{out}} = {names[axis]};")
