"""Convolution, encoders, random shifts, and which parts of an observation the actor and the critics see."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import CoveyError
from covey.nn.convolution import convolve
from covey.nn.encoders import DrQ, Image, Impala, Nature, scaled, shifted
from covey.nn.networks import apply, init
from covey.nn.normalise import Normalise
from covey.nn.parts import ENCODERS, Networks, Torso, register
from covey.observation import Observation, Part
from covey.types import EnvSpec, Step

KEY = jax.random.key(0)
SMALL = Torso(hidden=(8,))
FORM = {"camera": Part((16, 16, 3), "uint8"), "privileged": Part((2,)), "speed": Part((3,))}


def spec_of(form) -> EnvSpec:
    return EnvSpec(form, 2, 10, (-1.0,) * 2, (1.0,) * 2)


def observation(form, *rows: int):
    """Random observations of a form."""
    keys = iter(jax.random.split(KEY, 9))

    def one(part: Part):
        shape = (*rows, *part.shown)
        if part.dtype == "uint8":
            return jax.random.randint(next(keys), shape, 0, 256).astype(jnp.uint8)
        return jax.random.normal(next(keys), shape)

    form = Observation.of(form)
    return form.of_names({name: one(part) for name, part in form.named})


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [((0, 0), (0, 0)), ((1, 1), (0, 2))])
@pytest.mark.parametrize("size", [(9, 8), (10, 11)])
def test_the_written_gradient_of_a_convolution_is_the_derived_one(stride: int, padding, size):
    x = jax.random.normal(KEY, (2, *size, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 2, 3, 4))

    def plain(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(function):
        return lambda x, kernel: jnp.sum(jnp.sin(function(x, kernel)))

    ours = jax.grad(loss(lambda x, k: convolve(x, k, stride, padding)), (0, 1))(x, kernel)
    theirs = jax.grad(loss(plain), (0, 1))(x, kernel)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(convolve(x, kernel, stride, padding), plain(x, kernel), rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_convolution_under_vmap_and_in_a_loop():
    x = jax.random.normal(KEY, (2, 3, 6, 6, 2))
    kernel = jax.random.normal(KEY, (2, 3, 3, 2, 4))

    def step(kernel, x):
        return jax.grad(lambda k: jnp.sum(convolve(x, k, 2, ((0, 0), (0, 0))) ** 2))(kernel)

    together = jax.vmap(step)(kernel, x)
    apart = jnp.stack([jax.lax.fori_loop(0, 1, lambda i, k, n=n: step(k, x[n]), kernel[n]) for n in range(2)])
    np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-4)


def test_the_gradient_lowers_for_accelerators_without_the_formulas_for_cpus():
    """On a CPU the gradient is products of matrices; elsewhere it is XLA's own convolutions."""
    x, kernel = jnp.zeros((2, 8, 8, 3)), jnp.zeros((3, 3, 3, 4))

    def gradient(kernel):
        return jax.grad(lambda k: jnp.sum(convolve(x, k, 2, ((0, 0), (0, 0))) ** 2))(kernel)

    def text(platform: str) -> str:
        return jax.jit(gradient).trace(kernel).lower(lowering_platforms=(platform,)).as_text()

    assert "dot_general" in text("cpu")
    for platform in ("cuda", "tpu"):
        assert "dot_general" not in text(platform) and text(platform).count("stablehlo.convolution") >= 2


@pytest.mark.parametrize("kind", [DrQ, Nature, Impala])
def test_encoders_take_images_with_any_leading_axes(kind):
    module = kind()
    images = observation(Part((36, 36, 3), "uint8"), 2, 3)
    params = init(module, KEY, images[0, 0])
    found = apply(module, params, images)
    assert found.shape == (2, 3, module.features) and bool(jnp.isfinite(found).all())
    np.testing.assert_allclose(found[1, 2], apply(module, params, images[1, 2]), rtol=1e-4, atol=1e-5)


def test_images_are_scaled_once_and_floats_are_not():
    image = jnp.array([0, 255, 51], jnp.uint8)
    np.testing.assert_allclose(scaled(image), [-0.5, 0.5, -0.3], atol=1e-6)
    assert scaled(jnp.array([7.0]))[0] == 7.0


@pytest.mark.parametrize(("kind", "least"), [("drq", 15), ("nature", 36), ("impala", 8)])
def test_an_image_that_is_too_small_is_named(kind: str, least: int):
    module = ENCODERS[kind]()
    with pytest.raises(CoveyError, match=f"at least {least} x {least} pixels, not 7 x 7"):
        init(module, KEY, jnp.zeros((7, 7, 3), jnp.uint8))


def test_a_shift_moves_each_image_and_repeats_its_edge():
    """By hand: a picture whose pixels are their row and column."""
    row, column = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    picture = np.broadcast_to(np.stack([row, column], axis=-1).astype(np.uint8), (50, 1, 8, 8, 2))
    zero = jnp.zeros((50, 1))
    form = Observation.of(Part((8, 8, 2), "uint8"))
    batch = Step(jnp.asarray(picture), zero, zero, zero, jnp.asarray(picture), zero, {})
    found = shifted(batch, form, 2, KEY)
    moves = np.asarray(found.obs)[:, 0, 4, 4].astype(int) - 4
    assert set(moves[:, 0]) == set(moves[:, 1]) == {-2, -1, 0, 1, 2}
    for image, (down, right) in zip(np.asarray(found.obs)[:, 0], moves, strict=True):
        np.testing.assert_array_equal(image[..., 0], np.clip(row + down, 0, 7))
        np.testing.assert_array_equal(image[..., 1], np.clip(column + right, 0, 7))
    assert not np.array_equal(found.obs, found.next_obs) and found.obs.dtype == jnp.uint8
    assert shifted(batch, form, 0, KEY) is batch


def moved_by(module: nn.Module, params, obs, *rest) -> set[str]:
    """Returns the parts of an observation that change the output of a module."""
    before = jax.tree.leaves(apply(module, params, obs, *rest))
    found = set()
    for name in obs:
        other = obs | {name: (obs[name] + 37).astype(obs[name].dtype)}
        after = jax.tree.leaves(apply(module, params, other, *rest))
        if any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
            found.add(name)
    return found


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("actor", "critic", "seen_by_actor", "seen_by_critic"),
    [
        ((), (), {"camera", "speed"}, {"camera", "privileged", "speed"}),
        (("speed",), ("privileged",), {"speed"}, {"privileged"}),
        (("privileged", "camera"), ("camera",), {"camera", "privileged"}, {"camera"}),
    ],
)
def test_the_actor_and_the_critics_see_their_parts(shared: bool, actor, critic, seen_by_actor, seen_by_critic):
    spec, obs = spec_of(FORM), observation(FORM)
    networks = Networks(actor=SMALL, critic=SMALL, image=Image(channels=(4, 4), features=6, shared=shared))
    encoder = networks.encoder_module(spec)
    params = init(encoder, KEY, obs)
    assert bool(params) == shared
    for module, seen, rest in (
        (networks.actor_module(spec, actor), seen_by_actor, ()),
        (networks.critic_module(spec, names=critic), seen_by_critic, (jnp.ones(2),)),
    ):
        own = init(module, KEY, apply(encoder, params, obs), *rest)

        class Both(nn.Module):
            def __call__(self, obs, *rest, module=module, own=own):
                return apply(module, own, apply(encoder, params, obs), *rest)

        assert moved_by(Both(), {}, obs, *rest) == seen


def test_each_part_may_have_its_own_encoder():
    spec, obs = spec_of(FORM), observation(FORM)
    image = Image(shared=False)
    networks = Networks(actor=SMALL, image=image, encoders=("camera=none", "speed=mlp"), encoder=Torso(hidden=(5,)))
    params = init(networks.actor_module(spec), KEY, obs)
    assert params["torso"]["Dense_0"]["kernel"].shape == (16 * 16 * 3 + 5, 8)


def test_an_encoder_of_the_users_needs_no_fields():
    @register(ENCODERS, "test-bare")
    class Bare(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(x.astype(jnp.float32).reshape(*x.shape[:-3], -1))

    try:
        networks = Networks(actor=SMALL, image=Image(kind="test-bare"))
        spec, obs = spec_of(FORM["camera"]), observation(FORM["camera"])
        params = init(networks.encoder_module(spec), KEY, obs)
        assert apply(networks.encoder_module(spec), params, obs).shape == (3,)
    finally:
        del ENCODERS["test-bare"]


@pytest.mark.parametrize(
    ("networks", "actor", "message"),
    [
        (Networks(), ("sped",), "no part of the observation called 'sped'.*speed"),
        (Networks(encoders=("camra=drq",)), (), "no part of the observation called 'camra'.*camera"),
        (Networks(image=Image(kind="impalla")), (), "no encoder called 'impalla'.*impala"),
    ],
)
def test_wrong_names_are_suggested(networks: Networks, actor, message: str):
    spec = spec_of(FORM)
    with pytest.raises(CoveyError, match=message):
        module = networks.encoder_module(spec)
        init(
            networks.actor_module(spec, actor),
            KEY,
            apply(module, init(module, KEY, observation(FORM)), observation(FORM)),
        )


@pytest.mark.parametrize(
    "wrong", [lambda: Networks(encoders=("camera",)), lambda: Image(shift=-1), lambda: Image(channels=(0,))]
)
def test_wrong_options_are_errors(wrong):
    with pytest.raises(CoveyError):
        wrong()


def test_normalisation_is_per_part_and_leaves_images_alone():
    form = Observation.of(FORM)
    normalise = Normalise(observations=True)
    obs = observation(FORM, 40, 1)
    obs["speed"] = obs["speed"] * 5.0 + 2.0
    zero = jnp.zeros((40, 1))
    rollout = Step(obs, zero, zero, zero, obs, zero, {})
    statistics = normalise.observe(normalise.init(form), rollout, 0.9)
    found = normalise.obs(statistics, obs)
    speed = np.asarray(obs["speed"])[:, 0]
    np.testing.assert_allclose(found["speed"][:, 0], (speed - speed.mean(0)) / speed.std(0), rtol=1e-4, atol=1e-4)
    assert found["camera"] is obs["camera"] and set(statistics.observations) == {"privileged", "speed"}
