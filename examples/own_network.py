"""A network of your own: any flax module can be the torso of the actor and of the critics.

From the command line:  covey --plugin examples.own_network train td3 --agent.networks.critic.kind residual
From Python:            python examples/own_network.py
"""

import flax.linen as nn

import covey


@covey.register_torso("residual")
class Residual(nn.Module):
    """Residual blocks with layer normalisation. A field receives the option of the same name from the configuration."""

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.hidden[0])(x)
        for width in self.hidden:
            x = x + nn.Dense(x.shape[-1])(nn.relu(nn.Dense(width)(nn.LayerNorm()(x))))
        return nn.LayerNorm()(x)


if __name__ == "__main__":
    torso = {"kind": "residual", "hidden": [32, 32]}
    agent = {"networks": {"actor": torso, "critic": torso}, "batch_size": 64}
    run = covey.train("td3", env="point", steps=4000, evaluations=5, agent=agent)
    print(run.evaluate(episodes=20))
