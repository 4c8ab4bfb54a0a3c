"""A training loop of your own: agent and replay are pure functions, and you decide when to call them.

python examples/own_loop.py
"""

import jax

from covey.agents.td3 import TD3, TD3Config, TD3Hyper
from covey.envs import make
from covey.nn.parts import Networks, Torso
from covey.replay import Record, Replay

env = make("point")
small = Torso(hidden=(32, 32))
agent = TD3(TD3Config(networks=Networks(actor=small, critic=small), batch_size=64), env.spec)
hyper = TD3Hyper(actor_lr=3e-3, critic_lr=3e-3, discount=0.97, tau=0.02, exploration_noise=0.3)
replay = Replay(rows=10_000, streams=1, observation=env.spec.observation, action_size=env.spec.action_size)


@jax.jit
def step(state, env_state, obs, key):
    """One step of the environment with the exploring policy."""
    key_act, key_env = jax.random.split(key)
    action = agent.act(state, hyper, (), obs, key_act, "sample").action
    env_state, outcome = env.step(env_state, action, key_env)
    return env_state, action, outcome


@jax.jit
def learn(state, buffer, key):
    """One call of the agent's update on a batch from replay."""
    key_sample, key_update = jax.random.split(key)
    batch = replay.sample(buffer, agent.plan, key_sample)
    return agent.update(state, hyper, batch, key_update)


add = jax.jit(replay.add, donate_argnums=0)  # without donation every write would copy the buffer
key, key_init = jax.random.split(jax.random.key(0))
state = agent.init(hyper, key_init)
buffer = replay.init()
returns = []
for episode in range(60):
    key, key_reset = jax.random.split(key)
    env_state, obs = env.reset(key_reset)
    total = 0.0
    for t in range(env.spec.episode_length + 1):
        key, key_step, key_learn = jax.random.split(key, 3)
        env_state, action, outcome = step(state, env_state, obs, key_step)
        last = t == env.spec.episode_length  # the final observation is stored too; its action is ignored
        buffer = add(buffer, Record(obs, action, outcome.reward, outcome.terminated, last, {}))
        if not last:
            total += float(outcome.reward)
        if int(buffer.written) > agent.plan.window:
            state, metrics = learn(state, buffer, key_learn)
        obs = outcome.obs
    returns.append(total)
    if episode % 10 == 9:
        print(f"episodes {episode - 8:2} to {episode + 1}: mean return {sum(returns[-10:]) / 10:.1f}")
