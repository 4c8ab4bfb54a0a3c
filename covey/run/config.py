"""The configuration of a run: one typed dataclass, which is the command line and the file `config.json` alike."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from covey import agents
from covey.envs.options import EnvOptions, check_kwargs
from covey.errors import require, unknown
from covey.hyper.names import by_name, field_of
from covey.hyper.range import Space
from covey.hyper.schedule import reconfigured
from covey.hyper.space import parse_range, range_text
from covey.population.pbt import PBT
from covey.run.config_text import (
    SHORTHANDS,
    Count,
    Ratio,
    as_texts,
    check_names,
    expanded,
    flat_texts,
    from_json,
    hyper_text,
    schedules_of,
    space_text,
    with_lengths,
)
from covey.run.limits import LARGEST, check_numbers
from covey.storage.config import CHANGES, DIGEST, read_config
from covey.storage.folder import RunFolder, is_folder_name
from covey.storage.replay_file import open_replay
from covey.storage.transfer import Source

AgentConfig = TypeVar("AgentConfig")
HyperText = TypeVar("HyperText")
MOST_REPLAY = 1_000_000
ISLANDS = 4
NO_TRACKER = "none"
KWARGS = ("env_kwargs", "eval_env_kwargs")
"""Options that are dictionaries with any names."""
LIMITS = ("env_descriptor_low", "env_descriptor_high")
"""Options that are lists of numbers."""


@dataclass(frozen=True)
class RunConfig(Generic[AgentConfig, HyperText]):
    """The configuration of a run. Everything is counted in environment steps, summed over a member's environments.

    The command line shows each field as an option, and `config.json` stores each. Create one with
    `covey.run.config.default_config`.

    Example:
        >>> run = covey.load("runs/pendulum-td3-0")
        >>> run.config.steps
        10000
    """

    algorithm: tyro.conf.Suppress[str]
    agent: AgentConfig
    """The agent's options; they never change within a run."""
    hyper: HyperText
    """Hyper-parameters: a number, or a schedule over environment steps, KIND:START:END[:STEPS] with KIND one of
    linear, exponential, cosine; for example linear:0.3:0.05."""
    env: str = "pendulum"
    """The environment; `covey envs` lists them. --env-kwargs.NAME VALUE sets an argument of it."""
    name: str = ""
    """A name for the run: its folder is runs/NAME, and curves show it in their legend."""
    env_kwargs: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict, hash=False)
    """Keyword arguments of the environment, as JSON values."""
    wrappers: tuple[str, ...] = ()
    """Wrappers of the environment, from the innermost: MODULE:NAME of a class or function from environment to
    environment."""
    episode_length: int = 0
    """Time limit of episodes in steps; 0 means the environment's own."""
    reward_parts: tuple[str, ...] = ()
    """Host environments: the keys of `info` that hold the parts of the reward, which is then their sum."""
    env_pixels: int = 0
    """Observe a picture of the environment, of this width and height in pixels, such as 64; 0 for its own observation.
    The built-in environments are drawn on the device, those of Gymnasium on the host."""
    env_pixels_beside: bool = False
    """With --env-pixels: keep the environment's own observation beside the picture."""
    env_stack: int = 0
    """Frames of each image that the agent observes at once, the newest ones; 0 means 3 with --env-pixels and 1
    without."""
    env_descriptor: tuple[str, ...] = ()
    """Gymnasium's environments: numbers in which skills should differ, and which evaluations record: info:KEY,
    obs:INDEX, obs:PART:INDEX, qpos:INDEX (MuJoCo), or MODULE:FUNCTION, a function of the environment; NAME=info:KEY
    names one. By default, where a robot is, if an agent learns skills."""
    env_descriptor_low: tuple[float, ...] = ()
    """Lower limits of --env-descriptor, for plots and goals: one for each number, or one for all; by default -10."""
    env_descriptor_high: tuple[float, ...] = ()
    """Upper limits of --env-descriptor, likewise; by default 10."""
    eval_env: str = ""
    """The environment of evaluations; by default that of training. --eval-env-kwargs.NAME VALUE sets an argument of
    it."""
    eval_env_kwargs: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict, hash=False)
    """Keyword arguments of the evaluation environment; without `eval_env`, besides those of the environment."""
    steps: Count = 20_000
    """Environment steps of each member."""
    seed: int = 0
    """Seed of the first member; member i has seed + i."""
    members: Annotated[int, tyro.conf.arg(name="seeds")] = 1
    """Members that differ only in their seed, trained together in one program."""
    envs: int = 1
    """Environments of each member."""
    warmup: Count = 1_000
    """Uniformly random steps before the first update."""
    updates_per_step: Ratio = 1.0
    """Gradient updates per environment step, as a number or a fraction: with --envs 1024, 8/1024 makes 8 after each
    step of all environments."""
    capacity: Count = 0
    """Steps that the replay of each member holds; 0 means all steps of the run and of --replay, at most a million."""
    replay: str = ""
    """A file saved by `covey replay`: the run starts with its data, and --warmup may be 0."""
    init_from: str = ""
    """Start from the best policy of another run: RUN for the whole agent, or RUN:actor, RUN:critic or RUN:encoder.
    Arrays that do not fit are listed, and start as in any run."""
    warmup_actions: Literal["auto", "random", "policy"] = "auto"
    """Actions of the warm-up: random (uniform), or those of the policy with its exploration. auto is policy if
    --init-from loads an actor, and random otherwise."""
    evaluations: int = 20
    """Evaluations in the run, evenly spaced, besides the one before training."""
    episodes: int = 20
    """Episodes per evaluation."""
    population_axis: Literal["auto", "map", "vmap"] = "auto"
    """Train members one after the other (map), in lock-step (vmap), or choose by the width of the networks (auto)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the networks' matrix products: float32, or bfloat16 with float32 accumulation. Parameters are
    float32 in both cases."""
    overlap: bool = True
    """Host environments: step them while the device learns, with a policy that is up to two blocks old. Without it,
    every step is learned from before the next."""
    workers: int = 0
    """Host environments: worker processes that step them; 0 steps them in the training process."""
    checkpoint_minutes: float = 1.0
    """Wall time between checkpoints; longer if they would take more than 3 % of the time."""
    track: tuple[str, ...] = ()
    """Trackers beside TensorBoard: wandb, trackio, mlflow, or one that a plugin registers; none for no tracker."""
    device: str = ""
    """Where to compute: cpu, gpu, tpu, cuda or rocm, or one device of it, such as cuda:0; empty for jax's default."""
    devices: int = 0
    """Devices per process that share its members: those of --device, which for a CPU are its cores; 0 uses as many as
    divide the members evenly."""
    engine: Literal["local", "ray"] = "local"
    """local: this process, or those of a job that you start. ray, for `covey evolve`: Ray starts islands of members."""
    pbt: tyro.conf.Suppress[PBT | None] = None
    """Population-based training; None without (`covey evolve` sets it)."""
    space: tyro.conf.Suppress[Any] = None
    """Search ranges, as text, with the same fields as `hyper`."""
    islands: tyro.conf.Suppress[int] = 0
    """The number of islands; 0 means 4 with `ray` and 1 otherwise."""

    def check(self) -> None:
        """Raises a CoveyError for values that no run can have."""
        check_numbers(self)
        self._check_signs()
        self._check_choices()
        check_kwargs(self.env_kwargs, "env_kwargs")
        check_kwargs(self.eval_env_kwargs, "eval_env_kwargs")
        require(
            not self.name or is_folder_name(self.name),
            f"`name` {self.name!r} can't be the name of a folder. Use letters, digits, spaces, and . _ + = -, at most "
            "100 of them, beginning with a letter or a digit.",
        )
        require(
            self.workers <= self.envs * self.members,
            f"`workers` {self.workers} is more than the {self.envs * self.members} environments. Raise `envs`.",
        )
        require(
            self.steps > self.warmup,
            f"`steps` {self.steps} ends within the warm-up of {self.warmup} random steps, so nothing would be learned. "
            f"Raise `steps` above {self.warmup}, or lower `warmup`.",
        )
        require(
            self.seed >= -(2**31) and self.seed + self.members <= 2**31,
            f"`seed` {self.seed} is out of range: every member's must lie between {-(2**31)} and {LARGEST}.",
        )
        if self.pbt is not None:
            _check_population(self, self.pbt)

    def _check_signs(self) -> None:
        for name in ("steps", "members", "envs", "warmup", "updates_per_step", "evaluations", "episodes"):
            value = getattr(self, name)
            if name == "warmup" and value == 0 and self.replay:
                continue
            require(value > 0, f"`{name}` must be positive, not {value}.")
        unsigned = ("capacity", "episode_length", "env_pixels", "env_stack", "workers", "checkpoint_minutes")
        for name in (*unsigned, "devices", "islands"):
            value = getattr(self, name)
            require(value >= 0, f"`{name}` must not be negative, not {value:g}.")

    def _check_choices(self) -> None:
        choices = {
            "population_axis": ("auto", "map", "vmap"),
            "precision": ("float32", "bfloat16"),
            "engine": ("local", "ray"),
            "warmup_actions": ("auto", "random", "policy"),
        }
        for name, known in choices.items():
            value = getattr(self, name)
            require(value in known, f"`{name}` must be one of {', '.join(known)}, not {value!r}.")
        require(
            ":" not in self.device or self.devices <= 1,
            f"`device` {self.device} is one device, not {self.devices}. Give the platform alone, such as "
            f"{self.device.partition(':')[0]}, or leave `devices` out.",
        )
        require(self.engine == "ray" or self.islands <= 1, f"`islands` {self.islands} needs `engine` ray.")
        require(self.engine != "ray" or self.pbt is not None, "`engine` ray is for `covey evolve`.")

    def resolved(self) -> "RunConfig[Any, Any]":
        """Returns the configuration with everything written out that depends on the run's length or its data."""
        replay = str(Path(self.replay).absolute()) if self.replay else ""
        loaded = open_replay(Path(replay)).steps if replay and not self.capacity else 0
        capacity = self.capacity or min(self.steps + loaded, MOST_REPLAY)
        source = Source.parse(self.init_from) if self.init_from else None
        acts = "policy" if source and source.has_policy else "random"
        actions = acts if self.warmup_actions == "auto" else self.warmup_actions
        # Written out, so that a longer run has generations as often, and schedules as long.
        pbt = self.pbt and dataclasses.replace(
            self.pbt, interval=self.pbt.interval or -(-self.steps // max(1, self.evaluations))
        )
        return dataclasses.replace(
            self,
            capacity=capacity,
            replay=replay,
            init_from=str(source) if source else "",
            warmup_actions=actions,
            track=() if NO_TRACKER in self.track else tuple(dict.fromkeys(self.track)),
            hyper=with_lengths(self.hyper, self.steps),
            pbt=pbt,
            islands=self.islands or (ISLANDS if self.engine == "ray" else 1),
        )

    @property
    def env_options(self) -> EnvOptions:
        """The options of the environment besides its name."""
        return EnvOptions(
            self.env_kwargs,
            self.wrappers,
            self.episode_length,
            self.reward_parts,
            self.env_pixels,
            self.env_pixels_beside,
            self.env_stack,
            self.env_descriptor,
            self.env_descriptor_low,
            self.env_descriptor_high,
        )

    @property
    def eval_env_options(self) -> EnvOptions:
        """The options of the evaluation environment besides its name."""
        kwargs = self.eval_env_kwargs if self.eval_env else {**self.env_kwargs, **self.eval_env_kwargs}
        return dataclasses.replace(self.env_options, kwargs=kwargs)

    @property
    def entry(self) -> agents.Entry:
        """The algorithm in the registry."""
        return agents.entry(self.algorithm)

    @property
    def fitness(self) -> str:
        """The quantity that members are ranked by: `return`, or a measure of skills."""
        asked = self.pbt.fitness if self.pbt else ""
        return asked or agents.entry(self.algorithm).fitness

    @property
    def curve(self) -> str:
        """The metric of the learning curve."""
        return agents.entry(self.algorithm).curve

    def searched(self) -> Space:
        """Returns the ranges that `covey evolve` tunes. A hyper-parameter with a schedule is never tuned."""
        if self.pbt is None:
            return {}
        schedules = by_name(self.schedules())
        texts = flat_texts(self.space)
        found = {}
        for own, allowed in agents.entry(self.algorithm).space.items():
            option = f"`space.{own}`"
            space = parse_range(option, texts[own], allowed)
            asked = space is not None and texts[own] != range_text(allowed)
            names = [name for name in schedules if field_of(name) == own]
            require(
                bool(names) or not asked, f"{option} can't be searched: `hyper.{own}` is not given. Give it a number."
            )
            for name in names:
                is_constant = schedules[name].kind == "constant"
                require(
                    is_constant or not asked,
                    f"{option} can't be searched: it follows the schedule {schedules[name]}. Give `hyper.{own}` a "
                    "number.",
                )
                if space is not None and is_constant:
                    found[name] = space
        return found

    def reconfigured(self, hyper: Any, changed: Collection[str]) -> Any:
        """Returns the members' hyper-parameters, with those among the options `changed` at their configured values."""
        fields = {name.removeprefix("hyper.") for name in changed if name.startswith("hyper.")}
        return reconfigured(hyper, self.schedules(), fields)

    def schedules(self) -> Any:
        """Returns the schedules of the hyper-parameters, with the fields of the agent's Hyper."""
        entry = agents.entry(self.algorithm)
        schedules = schedules_of(entry.hyper(), self.hyper, self.steps)
        for name, schedule in by_name(schedules).items():
            field = field_of(name)
            allowed = entry.space[field]
            for value in (schedule.start, schedule.end):
                require(
                    allowed.least <= value <= allowed.most,
                    f"`hyper.{field}` must lie between {allowed.least:g} and {allowed.most:g}, not {value:g}. "
                    f"(Searched from {allowed.low:g} to {allowed.high:g}.)",
                )
        return schedules


def _check_population(config: RunConfig[Any, Any], pbt: PBT) -> None:
    require(
        config.members >= 2 or pbt.bottom == 0,
        f"`members` must be at least 2, not {config.members}: there would be no donor.",
    )
    replaced = round(pbt.bottom * config.members)
    require(
        replaced > 0 or pbt.bottom == 0,
        f"`pbt.bottom` {pbt.bottom:g} of {config.members} members is less than one. Raise it to at least "
        f"{1 / config.members:.2g}, or give 0 to replace none.",
    )
    config.searched()


def config_type(algorithm: str) -> Any:
    """Returns the RunConfig type of an algorithm."""
    entry = agents.entry(algorithm)
    return RunConfig[entry.config, hyper_text(entry.hyper)]


def option_names(algorithm: str) -> list[str]:
    """Returns the dotted names of all options of an algorithm's runs, such as `steps` and `agent.batch_size`."""
    entry = agents.entry(algorithm)
    own = [each.name for each in dataclasses.fields(RunConfig) if each.name not in ("algorithm", "agent", "hyper")]
    config = [f"agent.{name}" for name in flat_texts(entry.config())]
    return [*own, "seeds", *SHORTHANDS, *config, *(f"hyper.{name}" for name in by_name(entry.hyper()))]


def default_config(algorithm: str, **options: Any) -> RunConfig[Any, Any]:
    """Returns the configuration of a run.

    Args:
        algorithm: The agent, as in `covey agents`.
        **options: Fields of `RunConfig` that differ from the defaults. `agent` is a dictionary or the agent's Config,
            `hyper` a dictionary or its Hyper; `seeds` is another name of `members`. `lr` sets every learning rate,
            `hidden` the hidden layers of every network.

    Example:
        >>> config = default_config("sac", env="reacher", hyper={"actor_lr": 1e-3})
    """
    algorithm = agents.canonical_name(algorithm)
    entry = agents.entry(algorithm)
    check_names(options, option_names(algorithm))
    options = expanded(algorithm, options)
    if "seeds" in options:
        options["members"] = options.pop("seeds")
    hyper = options.pop("hyper", {})
    if not dataclasses.is_dataclass(hyper):
        hyper = from_json(hyper_text(entry.hyper), as_texts(hyper), "hyper")
    agent = from_json(entry.config, options.pop("agent", {}), "agent")
    options |= _population_options(algorithm, options)
    options = {name: _fitting(name, value) for name, value in options.items()}
    return RunConfig(algorithm=algorithm, agent=agent, hyper=hyper, **options)


def _population_options(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options `pbt` and `space` as dataclasses, from dictionaries."""
    pbt = options.get("pbt")
    space = options.get("space")
    if isinstance(pbt, dict):
        pbt = from_json(PBT, pbt, "pbt")
    if isinstance(space, dict) or (space is None and pbt is not None):
        default = space_text(algorithm)
        space = from_json(type(default), as_texts(space or {}), "space", default)
    return {"pbt": pbt, "space": space}


def _fitting(name: str, value: Any) -> Any:
    """Returns a value as the type of a field of RunConfig; 1e6 and NumPy's numbers are whole numbers too."""
    if name in ("pbt", "space"):
        return value
    if name in KWARGS:
        return check_kwargs(value, name)
    kind = type(getattr(RunConfig, name))
    value = _listed(name, value) if kind is tuple else value
    value = str(value) if isinstance(value, Path) else value
    try:
        fits = kind(value) == value and isinstance(value, bool) == (kind is bool)
    except (TypeError, ValueError, OverflowError):
        fits = False
    require(fits, f"`{name}` must be {kind.__name__}, not {value!r}.")
    return kind(value)


def _listed(name: str, values: Any) -> Any:
    """Returns a list of texts, or of the numbers of an option in LIMITS, as a tuple; anything else as it is."""
    kinds = (int, float) if name in LIMITS else (str,)
    fits = isinstance(values, list | tuple) and all(type(each) in kinds for each in values)
    if not fits:
        return values
    return tuple(map(float, values)) if name in LIMITS else tuple(values)


def load_config(path: Path) -> RunConfig[Any, Any]:
    """Loads the configuration from a file that the user named, which may have been edited."""
    return as_config(read_config(path, follow=True), path)


def read_run_config(folder: RunFolder) -> RunConfig[Any, Any]:
    """Reads the configuration of a run folder; an error if it was altered."""
    return as_config(folder.read_config(), folder.config)


def as_config(values: dict[str, Any], path: Path) -> RunConfig[Any, Any]:
    """Returns the configuration that values from a file describe; an error names the field that does not fit."""
    data = {name: value for name, value in values.items() if name not in (DIGEST, CHANGES)}
    for name in ("pbt", "space"):
        require(isinstance(data.get(name), dict | None), f"{path}: {name} must be an object, not {data.get(name)!r}.")
    data["algorithm"] = agents.canonical_name(data["algorithm"])
    entry = agents.entry(data["algorithm"])
    agent = from_json(entry.config, data.pop("agent", {}), "agent")
    hyper = from_json(hyper_text(entry.hyper), data.pop("hyper", {}), "hyper")
    fields = {each.name: each for each in dataclasses.fields(RunConfig)}
    population = _population_options(data["algorithm"], {n: data.pop(n, None) for n in ("pbt", "space")})
    data |= {n: _listed(n, data[n]) for n, each in fields.items() if n in data and isinstance(each.default, tuple)}
    for name, value in data.items():
        if name not in fields:
            raise unknown("option", name, fields)
        default = fields[name].default
        if name in KWARGS:
            require(isinstance(value, dict), f"{path}: {name} must be an object, not {value!r}.")
        fits = type(value) is type(default) or (isinstance(default, float) and type(value) is int)
        require(
            default is dataclasses.MISSING or fits, f"{path}: {name} must be {type(default).__name__}, not {value!r}."
        )
    return RunConfig(agent=agent, hyper=hyper, **data, **population).resolved()
