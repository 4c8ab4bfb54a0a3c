"""An algorithm of your own: a deterministic policy gradient with one critic. Copy this file to start a new one.

Config never changes, Hyper is changed by tuning, State is changed by learning, Memory is changed within an episode.
Once it is registered, both training loops, populations, checkpoints and the command line work with it.

From the command line:  covey --plugin examples.own_agent train dpg --env point --steps 5000
From Python:            python examples/own_agent.py
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import covey
from covey.agent import Decision, SamplePlan
from covey.agents import Entry
from covey.errors import require_at_least
from covey.hyper.range import Range
from covey.nn.networks import apply, init
from covey.nn.optim import Optimiser, polyak
from covey.nn.parts import Networks, Torso
from covey.nn.returns import mean_valid, n_step
from covey.types import EnvSpec

SMALL = Torso(hidden=(64, 64))


@dataclass(frozen=True)
class DPGConfig:
    """Static options. The command line shows each field as --agent.NAME, with the text below it as help."""

    networks: Networks = field(default_factory=lambda: Networks(actor=SMALL, critic=SMALL))
    """Networks: torsos, encoder, heads."""
    batch_size: int = 64
    """Transitions per update."""

    def __post_init__(self):
        require_at_least(self, 1, "batch_size")


class DPGHyper(NamedTuple):
    """Hyper-parameters: numbers that a schedule or a search may change at any time.

    Args:
        actor_lr: Learning rate of the actor.
        critic_lr: Learning rate of the critic.
        discount: Discount of one step.
        tau: Share by which the target critic moves towards the critic.
        noise: Standard deviation of the noise on actions in collection.
    """

    actor_lr: Any = 1e-3
    critic_lr: Any = 1e-3
    discount: Any = 0.97
    tau: Any = 0.01
    noise: Any = 0.3


DPG_SPACE = {  # where `covey evolve` searches
    "actor_lr": Range(1e-5, 1e-2),
    "critic_lr": Range(1e-5, 1e-2),
    "discount": Range(0.9, 0.999, "one_minus", most=1.0),
    "tau": Range(1e-3, 1e-1, most=1.0),
    "noise": Range(0.05, 1.0),
}


class DPGState(NamedTuple):
    """What learning changes: all of it is saved in checkpoints and copied by population-based training."""

    actor: Any
    critic: Any
    target_critic: Any
    actor_optimiser: Any
    critic_optimiser: Any


@dataclass(frozen=True)
class DPG:
    """The agent. It holds no arrays: its methods are pure functions of the state."""

    config: DPGConfig
    spec: EnvSpec

    @property
    def plan(self):
        """The batch that `update` needs, and how many gradient updates it makes."""
        return SamplePlan(self.config.batch_size, window=1, updates=1)

    @property
    def actor(self):
        return self.config.networks.actor_module(self.spec)

    @property
    def critic(self):
        return self.config.networks.critic_module(self.spec)

    def init(self, hyper, key):
        """A new state."""
        key_actor, key_critic = jax.random.split(key)
        obs = self.spec.observation.zeros()
        actor = init(self.actor, key_actor, obs)
        critic = init(self.critic, key_critic, obs, jnp.zeros(self.spec.action_size))
        return DPGState(actor, critic, critic, Optimiser().init(actor), Optimiser().init(critic))

    def begin(self, state, hyper, key):
        """The memory at the first step of an episode; this agent needs none."""
        return ()

    def act(self, state, hyper, memory, obs, key, mode):
        """One decision in one environment. `mode` is a Python string, so `if` is fine."""
        noise = jax.random.normal(key, (self.spec.action_size,))
        if mode == "random":  # the warm-up
            return Decision(jnp.tanh(noise), memory, {})
        action = apply(self.actor, state.actor, obs)
        if mode == "sample":  # collection
            action = jnp.clip(action + hyper.noise * noise, -1.0, 1.0)
        return Decision(action, memory, {})

    def observe(self, state, hyper, rollout, key):
        """Fresh data [T, N], each step once: the place for running statistics, which this agent does not have."""
        return state

    def update(self, state, hyper, batch, key):
        """One gradient step of the critic and one of the actor. A batch also holds steps that are not `valid`."""
        data = n_step(batch, hyper.discount)
        next_action = apply(self.actor, state.actor, data.next_obs)
        target = data.reward + data.discount * apply(self.critic, state.target_critic, data.next_obs, next_action)

        def critic_loss(critic):
            error = apply(self.critic, critic, data.obs, data.action) - target
            return mean_valid(error**2, data.valid)

        def actor_loss(actor):
            action = apply(self.actor, actor, data.obs)
            return -mean_valid(apply(self.critic, state.critic, data.obs, action), data.valid)

        critic_value, slope = jax.value_and_grad(critic_loss)(state.critic)
        critic, critic_optimiser = Optimiser().step(state.critic, slope, state.critic_optimiser, hyper.critic_lr)
        actor_value, slope = jax.value_and_grad(actor_loss)(state.actor)
        actor, actor_optimiser = Optimiser().step(state.actor, slope, state.actor_optimiser, hyper.actor_lr)
        target_critic = polyak(state.target_critic, critic, hyper.tau)
        metrics = {"critic_loss": critic_value, "actor_loss": actor_value}
        return DPGState(actor, critic, target_critic, actor_optimiser, critic_optimiser), metrics


covey.register_agent(
    "dpg",
    Entry(
        config=DPGConfig,
        hyper=DPGHyper,
        space=DPG_SPACE,
        make=DPG,
        summary="deterministic policy gradient with one critic",
    ),
)

if __name__ == "__main__":
    run = covey.train("dpg", env="point", steps=5000, evaluations=5, quiet=True)
    returns = run.metrics()["eval/return"]
    for step, value in zip(returns["step"], returns["value"], strict=True):
        print(f"step {step}: return {value:.1f}")
    print(run.evaluate(episodes=20))
