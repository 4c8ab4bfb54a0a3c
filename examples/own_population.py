"""Your own population: members learn, are evaluated, and the worst copy the best. In memory; no file is written.

python examples/own_population.py
"""

import covey
from covey.nn.parts import Networks, Torso

MEMBERS = 8

env = covey.envs.make("point")
small = Torso(hidden=(32, 32))
agent = covey.TD3(covey.TD3Config(networks=Networks(actor=small, critic=small), batch_size=64), env.spec)
trainer = covey.make_trainer(agent, env, covey.TD3Hyper(), capacity=20_000)
loop = covey.DeviceLoop(trainer, members=MEMBERS)
pbt = covey.PBT(bottom=0.25, top=0.25)
space = covey.TD3_SPACE

population = loop.init(covey.draw_hypers(space, seed=0, members=MEMBERS), seed=0)
population = loop.advance(population, blocks=5, warmup=True)  # random actions, to fill the replay
for generation in range(6):
    population = loop.advance(population, blocks=5)
    returns = covey.evaluate(loop, population, episodes=10).returns
    population, successors = covey.exchange(pbt, loop, population, returns, space, seed=0, generation=generation)
    replaced = ", ".join(f"{member} copies {s.parent}" for member, s in enumerate(successors) if s.reason != "kept")
    print(f"generation {generation}: mean returns {returns.mean(axis=1).round().astype(int)}; {replaced}")
