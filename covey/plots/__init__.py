"""Figures and films of runs. They take data, not folders: the caller reads the files of a run."""

from covey.plots.curves import curve, plot_curves, plot_metrics
from covey.plots.episode import plot_episode
from covey.plots.film import MP4_FRAMES, film_writer, write_gif, write_mp4
from covey.plots.labels import labels, title
from covey.plots.population import plot_fitness, plot_hypers, plot_lineage
from covey.plots.skills import plot_plan, plot_skills
from covey.plots.style import Picture, write_csv

__all__ = [
    "MP4_FRAMES",
    "Picture",
    "curve",
    "film_writer",
    "labels",
    "plot_curves",
    "plot_episode",
    "plot_fitness",
    "plot_hypers",
    "plot_lineage",
    "plot_metrics",
    "plot_plan",
    "plot_skills",
    "title",
    "write_csv",
    "write_gif",
    "write_mp4",
]
