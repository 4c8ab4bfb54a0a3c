"""The programs of a run, lowered for accelerators on a machine that has none.

They call no host and no code for CPUs, hold no float64, and put their results where their arguments were.
"""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.programs import traced_update
from covey import agents, envs
from covey.agents.recipes import find_recipe
from covey.envs.builtin.point import Point
from covey.evaluation.evaluate import evaluate_members
from covey.replay import Record
from covey.run.config import default_config
from covey.training.collect import Rows
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from covey.training.host_programs import Learner
from covey.training.trainer import Trainer, initial_shapes, make_trainer
from tests.tasks import Camera, small_trainer

PLATFORMS = ("cuda", "rocm", "tpu")
FACTORS = frozenset({f"{library}solver_{name}_ffi" for library in ("cu", "hip") for name in ("geqrf", "orgqr")}
                    | {"Qr", "ProductOfElementaryHouseholderReflectors"})  # fmt: skip
"""The factors Q and R of a matrix: from the libraries of Nvidia and AMD, and from XLA on TPUs. Orthogonal initial
weights need them."""
INDEX = jax.ShapeDtypeStruct((), jnp.int32)


def assert_runs_on_accelerators(
    traced: Any, donated: Any = (), allowed: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Asserts that each platform's program needs nothing but its device, and reuses the memory of what it is given.

    Args:
        traced: The program, from `jax.jit(...).trace`.
        donated: The tree of its arguments that the results replace; each array has to.
        allowed: Custom calls that exist on these platforms.

    Returns:
        The text of each platform's program.
    """
    texts = {platform: traced.lower(lowering_platforms=(platform,)).as_text() for platform in PLATFORMS}
    for text in texts.values():
        # jax does not lower a Python callback for a device that is not there. Others are custom calls, or messages.
        assert set(re.findall(r"custom_call @([\w.$]+)", text)) <= allowed
        assert not re.findall(r"stablehlo\.(?:send|recv|infeed|outfeed)\b", text)
        assert not re.findall(r"[x<]f64\b", text)
        assert text.count("tf.aliasing_output") == len(jax.tree.leaves(donated))
    return texts


def chunk(trainer: Trainer, members: int = 2, axis: Any = "vmap", warmup: bool = False) -> tuple[Any, Any]:
    """The training program, traced, and the population that it is given. Accelerators train members in lock-step."""
    loop = DeviceLoop(trainer, members, axis)
    population = loop.template()
    return DeviceLoop._advance.trace(loop, population, INDEX, warmup=warmup), population


def evaluation(trainer: Trainer) -> Any:
    members = DeviceLoop(trainer, 2, "vmap").template().members
    run = partial(evaluate_members, trainer.agent, trainer.env, episodes=4, axis="vmap")
    return jax.jit(run).trace(members.agent, members.hyper, key=jax.eval_shape(lambda: jax.random.key(0)))


@pytest.mark.parametrize("agent", agents.REGISTRY)
def test_training_warm_up_and_evaluation_of_a_population(agent: str):
    trainer = small_trainer(agent, Point(), envs=2)
    assert_runs_on_accelerators(*chunk(trainer))
    assert_runs_on_accelerators(*chunk(trainer, warmup=True))
    assert_runs_on_accelerators(evaluation(trainer))


@pytest.mark.parametrize(("members", "shared"), [(1, False), (2, True)], ids=["one", "two that share their replay"])
def test_members_one_after_the_other(members: int, shared: bool):
    assert_runs_on_accelerators(*chunk(small_trainer("td3", Point(), shared=shared), members, "map"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["crossq", "simba", "flash", "xqc"])
def test_recipes(recipe: str):
    """The creation of a member and its update, at their full size: nothing is computed."""
    config = default_config("sac", **find_recipe("sac", recipe).recipe.options)
    agent = config.entry.make(config.agent, Point().spec)
    trainer = make_trainer(agent, Point(), config.schedules(), updates_per_step=config.updates_per_step)
    assert_runs_on_accelerators(traced_update(trainer))
    loop = DeviceLoop(trainer)
    orthogonal = config.agent.networks.weights == "orthogonal"
    created = jax.jit(loop.init).trace(*initial_shapes(trainer, 1))
    assert_runs_on_accelerators(created, allowed=FACTORS if orthogonal else frozenset())


def test_host_environments():
    """What the learner's device runs, and acting where it is not in NumPy."""
    loop = HostLoop(small_trainer("td3", envs.make("gymnasium:tests.host_tasks:Counted"), envs=2), 2, "vmap")
    population, trainer = loop.template(), loop.trainer
    learner = Learner(population.members._replace(world=()), population.replay)
    world = population.members.world
    keys = jax.eval_shape(loop.programs.step_keys, population.members.key, INDEX)
    prepared = jax.eval_shape(partial(loop.programs.prepare, mode="sample"), learner.members.hyper, keys, INDEX)
    actor = loop.programs.actor(learner.members.agent, "sample")
    acting = loop.programs.act.trace(
        loop.programs, actor, world.memory, world.first, world.obs, prepared, INDEX, mode="sample"
    )
    decision = acting.out_info
    flags = world.first
    rewards = jax.ShapeDtypeStruct(flags.shape, jnp.float32)
    rows = Rows(Record(world.obs, decision.action, rewards, flags, flags, decision.extras), world.obs)
    lead = (2, trainer.iterations, trainer.unroll)
    rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape[1:]), x.dtype), rows)
    finished = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    for warmup in (True, False):
        places = (INDEX, INDEX, INDEX)
        learning = loop.programs.learn.trace(loop.programs, learner, rows, finished, *places, warmup=warmup)
        assert_runs_on_accelerators(learning, learner)
    assert_runs_on_accelerators(acting)


def test_images_have_the_gradient_of_each_platform():
    """CPUs have that of a plain convolution and products, accelerators the one that XLA derives."""
    traced, population = chunk(small_trainer("td3", Camera()))
    assert population.replay.frames
    texts = assert_runs_on_accelerators(traced, population)

    def kinds(text: str) -> set[str]:
        return set(re.findall(r"stablehlo\.convolution\(.*?dim_numbers = (.*?), window", text))

    plain = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    of_images, of_kernels = "[b, 0, 1, f]x[0, 1, o, i]->[b, 0, 1, f]", "[f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f]"
    assert kinds(traced.lower(lowering_platforms=("cpu",)).as_text()) == {plain}
    for text in texts.values():
        assert kinds(text) == {plain, of_images, of_kernels}
