"""The actions of one episode over time."""

from pathlib import Path

import numpy as np

from covey.evaluation.rollout import Episode
from covey.plots.style import COLOURS, HIGHLIGHT, INK, Picture, set_title, steps_figure, write_figure

MOST_LABELS = 8
"""Actions that are named in the legend."""


def plot_episode(episode: Episode, out: Path, title: str) -> Picture:
    """Draws the actions of an episode over time, and below them a strip for each annotation of the policy.

    Args:
        episode: The episode.
        out: The PNG.
        title: The title.

    Returns:
        The path of the PNG.
    """
    figure, (axes,) = steps_figure()
    edges = np.arange(len(episode.actions) + 1)
    for i, action in enumerate(episode.actions.T):
        label = f"action {i}" if i < MOST_LABELS else None
        axes.stairs(action, edges, baseline=None, color=COLOURS[i % len(COLOURS)], linewidth=1.4, label=label)
    low = -1.08
    for name, values in episode.annotations.items():
        steps = [(step, 1) for step in np.flatnonzero(values > 0.5)]
        axes.broken_barh(steps, (low - 0.12, 0.12), color=HIGHLIGHT, linewidth=0, label=name)
        low -= 0.16
    axes.set_ylim(low - 0.04, 1.08)
    set_title(axes, title)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("action in [-1, 1]", color=INK)
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.legend(frameon=False, labelcolor=INK, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return write_figure(figure, out)
