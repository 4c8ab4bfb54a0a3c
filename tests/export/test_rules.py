"""Every operation that a policy may use, in every format, against JAX."""

import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.errors import CoveyError
from covey.export.c_file import c_header
from covey.export.contract import contract
from covey.export.onnx_file import onnx_model
from covey.export.opened import CPolicy
from covey.export.rules import ELEMENTWISE, REDUCTIONS, RULES
from covey.export.runner import run
from covey.export.seal import SEAL, sealed
from covey.export.trace import trace
from covey.observation import Part
from covey.types import EnvSpec

SIZE = 6
OBS = np.concatenate(
    [np.random.default_rng(0).normal(size=(20, SIZE)), np.zeros((1, SIZE)), np.full((1, SIZE), 0.5)]
).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=(2, SIZE, 4)).astype(np.float32)
TABLE = jnp.asarray(np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32))

FUNCTIONS: dict[str, Any] = {
    "activations": lambda x: jnp.stack([f(x) for f in (jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.elu, jnp.tanh)]),
    "gelu by erf": lambda x: jax.nn.gelu(x, approximate=False),
    "erf": jax.lax.erf,
    "softplus": lambda x: jnp.stack(
        [jax.nn.softplus(x), jnp.log(jnp.abs(x) + 1.0), jax.nn.sigmoid(x), jnp.log1p(jnp.abs(x)), jnp.expm1(x)]
    ),
    "powers": lambda x: jnp.stack([x**2, x**3, (x + 9.0) ** -2, jnp.abs(x) ** 1.5, jax.lax.rsqrt(jnp.abs(x) + 1.0)]),
    "rounding": lambda x: jnp.stack(
        [jnp.floor(x), jnp.ceil(x), jnp.round(3.0 * x), jnp.sign(x), jnp.sin(x), jnp.cos(x)]
    ),
    "limits": lambda x: jnp.stack(
        [jnp.clip(x, -0.5, 0.5), jnp.maximum(x, x[::-1]), jnp.minimum(x, 0.1), -x, jnp.abs(x)]
    ),
    "logic": lambda x: jnp.where(
        (x > 0) & ~(x > 1) | (x == 0), x, jnp.where(x != 0, 2.0, jnp.isfinite(x).astype(jnp.float32))
    ),
    "logic of flags": lambda x: jnp.where(jnp.where(x[0] > 0, x < 1, x >= 0), 1.0, jnp.where(x <= 0, 2.0, 3.0)),
    "reductions": lambda x: jnp.stack([x.sum(), x.max(), x.min(), x.mean(), x.std(), x.reshape(2, 3).sum(1)[0]]),
    "all and any": lambda x: jnp.stack([jnp.all(x > -1), jnp.any(x > 1)]).astype(jnp.float32),
    "positions": lambda x: jnp.stack([jnp.argmax(x), jnp.argmin(x)]).astype(jnp.float32),
    "one hot": lambda x: jax.nn.one_hot(jnp.argmax(x[:4]), 4),
    "lookup": lambda x: TABLE[jnp.argmax(x[:5])],
    "choice of cases": lambda x: jax.lax.select_n(jnp.clip(jnp.argmax(x), 0, 2).astype(jnp.int32), x, 2.0 * x, 3.0 * x),
    "shapes": lambda x: jnp.concatenate([x.reshape(2, 3).T.reshape(-1), x[1:4], x[::2], x[jnp.array([4, 0, 4])]]),
    "columns": lambda x: jnp.stack([x, 2.0 * x])[:, jnp.array([5, 1])],
    "splits": lambda x: jnp.concatenate(jnp.split(x, 3)[::-1]),
    "matrix": lambda x: x @ WEIGHTS[0],
    "ensemble": lambda x: jnp.min(jax.vmap(lambda w: x @ w)(jnp.asarray(WEIGHTS)), axis=0),
    "outer product": lambda x: jnp.einsum("i,j->ij", x[:2], x[2:]),
    "several axes": lambda x: jnp.einsum("ij,kij->k", x.reshape(2, 3), jnp.asarray(WEIGHTS).reshape(8, 2, 3)),
    "layer norm": lambda x: (x - x.mean()) * jax.lax.rsqrt(x.var() + 1e-6),
    "bfloat16": lambda x: (x.astype(jnp.bfloat16) @ WEIGHTS[0].astype(jnp.bfloat16)).astype(jnp.float32),
    "a constant": lambda x: jnp.arange(3.0),
    "whole numbers": lambda x: (x > 0).sum().astype(jnp.int32)[None] * 2 - 1,
    "padding": lambda x: jnp.pad(x.reshape(2, 3), ((1, 0), (2, 1)), constant_values=0.5),
    "windows of a vector": lambda x: jnp.stack(
        [
            jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3,), (1,), "SAME"),
            jax.lax.reduce_window(x, 0.0, jax.lax.add, (2,), (1,), ((1, 0),)),
        ]
    ),
    "convolution of a vector": lambda x: jax.lax.conv_general_dilated(
        x.reshape(1, 3, 2),
        jnp.asarray(WEIGHTS).reshape(2, 2, 12),
        (1,),
        ((1, 2),),
        dimension_numbers=("NWC", "WIO", "NWC"),
    ),
}
IMAGE = Part((9, 8, 2), "uint8")
IMAGES = np.random.default_rng(3).integers(0, 256, (6, *IMAGE.shape)).astype(np.uint8)
IMAGES[0], IMAGES[1] = 0, 255


def kernel(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(4).normal(size=shape).astype(np.float32) / np.sqrt(np.prod(shape[:-1])))


@jax.custom_vjp
def own_gradient(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, w, (2, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


own_gradient.defvjp(lambda x, w: (own_gradient(x, w), (x, w)), lambda kept, _: kept)


def convolved(x: jax.Array, w: jax.Array, strides: Any = (1, 1), padding: Any = "VALID", order: str = "NHWC") -> Any:
    return jax.lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=(order, "HWIO", order))


def pooled(x: jax.Array, window: Any, strides: Any, padding: str = "SAME") -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (*window, 1), (*strides, 1), padding)


def scaled(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) / 255.0 - 0.5


ON_IMAGES: dict[str, Any] = {
    "convolution": lambda x: convolved(scaled(x)[None], kernel(3, 3, 2, 4)),
    "convolution with strides": lambda x: convolved(scaled(x)[None], kernel(4, 3, 2, 3), (3, 2)),
    "convolution with own padding": lambda x: convolved(scaled(x)[None], kernel(3, 2, 2, 5), (2, 1), ((2, 0), (1, 3))),
    "convolution of the same size": lambda x: convolved(scaled(x)[None], kernel(3, 3, 2, 4), (2, 2), "SAME"),
    "convolution of several images": lambda x: convolved(
        jnp.stack([scaled(x), scaled(x)[::-1], 2.0 * scaled(x)]), kernel(3, 3, 2, 4), (2, 2)
    ),
    "convolution, channels first": lambda x: convolved(
        jnp.transpose(scaled(x), (2, 0, 1))[None], kernel(3, 3, 2, 4), order="NCHW"
    ),
    "convolution with a gradient of its own": lambda x: jax.nn.relu(own_gradient(scaled(x)[None], kernel(3, 3, 2, 4))),
    "two layers": lambda x: convolved(jax.nn.relu(convolved(scaled(x)[None], kernel(3, 3, 2, 8))), kernel(2, 2, 8, 3)),
    "pooling": lambda x: pooled(scaled(x), (3, 3), (2, 2)),
    "pooling, without padding": lambda x: pooled(scaled(x), (2, 3), (2, 1), "VALID"),
    "pooling along one axis": lambda x: pooled(scaled(x), (1, 3), (1, 2)),
    "pooling by mean": lambda x: jax.lax.reduce_window(
        scaled(x), 0.0, jax.lax.add, (3, 3, 1), (2, 2, 1), ((1, 1), (1, 0), (0, 0))
    ),
    "normalised pixels": lambda x: (
        (scaled(x) - scaled(x).mean(-1, keepdims=True)) * jax.lax.rsqrt(scaled(x).var(-1, keepdims=True) + 1e-2)
    ),
    "bytes": lambda x: jnp.concatenate([x[::2, 1:4], x[1::2, 3:6][:4]], axis=0).max(axis=(0, 1)).astype(jnp.float32),
    "largest pixels": lambda x: jnp.max(scaled(x), axis=(0, 1)),
}
CASES = {name: (each, Part((SIZE,)), OBS) for name, each in FUNCTIONS.items()}
CASES |= {name: (each, IMAGE, IMAGES) for name, each in ON_IMAGES.items()}


def traced(function: Any, batched: bool, part: Part = CASES["matrix"][1]) -> Any:
    def policy(obs: Any, memory: Any, key: Any) -> tuple[Any, Any]:
        return jnp.ravel(function(obs)).astype(jnp.float32), ()

    return trace(policy, part, (), jax.random.key(0), batched=batched)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Any:
    with jax.numpy_rank_promotion("allow"):
        yield CASES[request.param]


def expected(function: Any, rows: np.ndarray) -> np.ndarray:
    return np.stack([np.asarray(jnp.ravel(function(jnp.asarray(obs)))) for obs in rows])


def test_numpy(case: Any):
    function, part, rows = case
    graph = traced(function, True, part)
    nodes = [(n.op, n.inputs, n.output.name, n.attributes) for n in graph.nodes]
    found = run(nodes, {"obs": rows} | graph.constants)[graph.outputs["action"]]
    np.testing.assert_allclose(found, expected(function, rows), atol=3e-6, rtol=3e-6)


def test_onnx(case: Any):
    runtime = pytest.importorskip("onnxruntime")
    function, part, rows = case
    model = onnx_model(traced(function, True, part), {})
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"obs": rows})[0], expected(function, rows), atol=3e-6, rtol=3e-6)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_c(case: Any):
    function, part, rows = case
    graph = traced(function, False, part)
    want = expected(function, rows)
    spec = EnvSpec(part, want.shape[1], 9, (-1.0,) * want.shape[1], (1.0,) * want.shape[1])
    about = contract(spec, (), graph, {})
    header = c_header(graph, {}, "policy", f"{SEAL}\n{_json(about)}")
    found = CPolicy(sealed(header.encode())).step({"obs": rows})["action"]
    np.testing.assert_allclose(found, want, atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("name", ON_IMAGES)
def test_a_graph_of_one_image(name: str):
    """Without the axis of the batch, as C has it, also in NumPy."""
    graph = traced(ON_IMAGES[name], False, IMAGE)
    nodes = [(n.op, n.inputs, n.output.name, n.attributes) for n in graph.nodes]
    for image in IMAGES[2:4]:
        found = run(nodes, {"obs": image} | graph.constants)[graph.outputs["action"]]
        np.testing.assert_allclose(found, expected(ON_IMAGES[name], image[None])[0], atol=3e-6, rtol=3e-6)


def _json(about: Any) -> str:
    import json

    return json.dumps(about, indent=1)


def test_every_rule_is_used_by_these_functions(monkeypatch: pytest.MonkeyPatch):
    from covey.export import trace as module

    used = set()
    real = module.result
    monkeypatch.setattr(module, "result", lambda graph, name, *rest: used.add(name) or real(graph, name, *rest))
    with jax.numpy_rank_promotion("allow"):
        for each, part, _ in CASES.values():
            traced(each, True, part)
    missing = {*ELEMENTWISE, *REDUCTIONS, *RULES} - used
    assert missing <= {"add_any", "expand_dims", "clamp", "dynamic_slice"}, missing


def test_an_operation_without_a_rule_is_named():
    with pytest.raises(CoveyError, match="operation 'sort' of JAX, which only the format jax can store"):
        traced(jnp.sort, batched=True)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: convolved(scaled(x)[None], scaled(x)[:3, :3, :, None]), "groups or dilation"),
        (
            lambda x: jax.lax.conv_general_dilated(
                scaled(x)[None],
                kernel(2, 2, 2, 4),
                (1, 1),
                "VALID",
                rhs_dilation=(2, 2),
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            ),
            "groups or dilation",
        ),
        (lambda x: jax.lax.reduce_window(scaled(x), -jnp.inf, jax.lax.max, (2, 1, 2), (1, 1, 1), "SAME"), "windows of"),
        (lambda x: jax.lax.pad(scaled(x), 0.0, ((0, 0, 1), (0, 0, 0), (0, 0, 0))), "pads an array between"),
    ],
)
def test_what_no_other_format_can_store(function: Any, message: str):
    with pytest.raises(CoveyError, match=message):
        traced(function, True, IMAGE)


def test_what_is_known_is_computed_at_once():
    graph = traced(lambda x: x * jnp.sqrt(jnp.sum(jnp.asarray(WEIGHTS) ** 2)), batched=True)
    assert [node.op for node in graph.nodes] == ["multiply"]
