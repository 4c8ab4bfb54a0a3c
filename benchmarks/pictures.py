"""Draws the picture of all built-in environments in docs/environments.md.

python -m benchmarks.pictures
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageDraw

from covey import envs

WIDTH, HEIGHT, CAPTION = 300, 240, 24
STEPS = {"pendulum": 30, "mountaincar": 120, "cartpole-swingup": 45, "reacher": 12, "point": 15, "point-free": 15}


def frame(name: str) -> np.ndarray:
    """Draws an environment after some steps with a constant action."""
    env = envs.make(name)
    key = jax.random.key(3)
    state, _ = env.reset(key)
    action = jnp.array([1.0, 0.6])[: env.spec.action_size]
    for _ in range(STEPS.get(name, 18)):
        state, _ = env.step(state, action, key)
    return env.frame(jax.device_get(state))


def main() -> None:
    names = envs.names()
    columns = 4
    rows = -(-len(names) // columns)
    sheet = Image.new("RGB", (columns * WIDTH, rows * (HEIGHT + CAPTION)), "white")
    draw = ImageDraw.Draw(sheet)
    for i, name in enumerate(names):
        picture = Image.fromarray(frame(name))
        picture.thumbnail((WIDTH - 12, HEIGHT - 12))
        x, y = (i % columns) * WIDTH, (i // columns) * (HEIGHT + CAPTION)
        sheet.paste(picture, (x + (WIDTH - picture.width) // 2, y + (HEIGHT - picture.height) // 2))
        draw.text((x + WIDTH // 2, y + HEIGHT), name, fill=(34, 48, 60), anchor="mt", font_size=16)
    out = Path("docs/images/environments.png")
    sheet.save(out, optimize=True)
    print(out)


if __name__ == "__main__":
    main()
