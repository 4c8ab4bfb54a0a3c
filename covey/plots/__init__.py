"""Figures and films of runs. They take data, not folders: the caller reads the files of a run."""

from covey.plots.curves import curve, plot_curves, plot_metrics
from covey.plots.episode import plot_episode
from covey.plots.film import MP4_FRAMES, film_writer, frames, require_film, save_film, write_gif, write_mp4
from covey.plots.labels import labels, title
from covey.plots.population import plot_fitness, plot_hypers, plot_lineage
from covey.plots.skills import are_discrete, drawn_coordinates, plot_plan, plot_skills, skill_colours, skill_labels
from covey.plots.style import Picture, write_csv
from covey.plots.tiles import TILE, Tile, path_pictures, plane_limits, resized, tiled

__all__ = [
    "MP4_FRAMES",
    "TILE",
    "Picture",
    "Tile",
    "are_discrete",
    "curve",
    "drawn_coordinates",
    "film_writer",
    "frames",
    "labels",
    "path_pictures",
    "plane_limits",
    "plot_curves",
    "plot_episode",
    "plot_fitness",
    "plot_hypers",
    "plot_lineage",
    "plot_metrics",
    "plot_plan",
    "plot_skills",
    "require_film",
    "resized",
    "save_film",
    "skill_colours",
    "skill_labels",
    "tiled",
    "title",
    "write_csv",
    "write_gif",
    "write_mp4",
]
