"""The built-in environments, one file each."""

from covey.envs.builtin.cartpole_swingup import CartpoleSwingup
from covey.envs.builtin.mountaincar import MountainCar
from covey.envs.builtin.pendulum import Pendulum
from covey.envs.builtin.point import Point
from covey.envs.builtin.pointmaze import PointMaze
from covey.envs.builtin.reacher import Reacher

__all__ = ["CartpoleSwingup", "MountainCar", "Pendulum", "Point", "PointMaze", "Reacher"]
