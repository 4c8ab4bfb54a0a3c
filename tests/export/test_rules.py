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
}


def traced(function: Any, batched: bool) -> Any:
    def policy(obs: Any, memory: Any, key: Any) -> tuple[Any, Any]:
        return jnp.ravel(function(obs)).astype(jnp.float32), ()

    return trace(policy, SIZE, (), jax.random.key(0), batched=batched)


@pytest.fixture(params=FUNCTIONS)
def function(request: pytest.FixtureRequest) -> Any:
    with jax.numpy_rank_promotion("allow"):
        yield FUNCTIONS[request.param]


def expected(function: Any) -> np.ndarray:
    return np.stack([np.asarray(jnp.ravel(function(jnp.asarray(obs)))) for obs in OBS])


def test_numpy(function: Any):
    graph = traced(function, batched=True)
    nodes = [(n.op, n.inputs, n.output.name, n.attributes) for n in graph.nodes]
    found = run(nodes, {"obs": OBS} | graph.constants)[graph.outputs["action"]]
    np.testing.assert_allclose(found, expected(function), atol=3e-6, rtol=3e-6)


def test_onnx(function: Any):
    runtime = pytest.importorskip("onnxruntime")
    model = onnx_model(traced(function, batched=True), {})
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"obs": OBS})[0], expected(function), atol=3e-6, rtol=3e-6)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_c(function: Any):
    graph = traced(function, batched=False)
    want = expected(function)
    spec = EnvSpec(SIZE, want.shape[1], 9, (-1.0,) * want.shape[1], (1.0,) * want.shape[1])
    about = contract(spec, (), graph, {})
    header = c_header(graph, {}, "policy", f"{SEAL}\n{_json(about)}")
    found = CPolicy(sealed(header.encode())).step({"obs": OBS})["action"]
    np.testing.assert_allclose(found, want, atol=3e-6, rtol=3e-6)


def _json(about: Any) -> str:
    import json

    return json.dumps(about, indent=1)


def test_every_rule_is_used_by_these_functions(monkeypatch: pytest.MonkeyPatch):
    from covey.export import trace as module

    used = set()
    real = module.result
    monkeypatch.setattr(module, "result", lambda graph, name, *rest: used.add(name) or real(graph, name, *rest))
    with jax.numpy_rank_promotion("allow"):
        for each in FUNCTIONS.values():
            traced(each, batched=True)
    missing = {*ELEMENTWISE, *REDUCTIONS, *RULES} - used
    assert missing <= {"add_any", "expand_dims", "clamp", "dynamic_slice"}, missing


def test_an_operation_without_a_rule_is_named():
    with pytest.raises(CoveyError, match="operation 'sort' of JAX, which only the format jax can store"):
        traced(jnp.sort, batched=True)


def test_what_is_known_is_computed_at_once():
    graph = traced(lambda x: x * jnp.sqrt(jnp.sum(jnp.asarray(WEIGHTS) ** 2)), batched=True)
    assert [node.op for node in graph.nodes] == ["multiply"]
