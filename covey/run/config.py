"""The configuration of a run: one typed dataclass, which is the command line and the file `config.json` alike."""

import dataclasses
import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import jax
import tyro
from tyro.constructors import PrimitiveConstructorSpec

from covey import agents
from covey.errors import require, unknown
from covey.hyper.names import by_name
from covey.hyper.range import Space
from covey.hyper.schedule import parse_schedule
from covey.hyper.space import parse_range, range_text
from covey.population.pbt import PBT
from covey.run.limits import check_numbers
from covey.storage.config import CHANGES, DIGEST, read_config
from covey.storage.folder import RunFolder
from covey.storage.replay_file import open_replay

AgentConfig = TypeVar("AgentConfig")
HyperText = TypeVar("HyperText")
MOST_REPLAY, ISLANDS = 1_000_000, 4


def count(texts: list[str]) -> int:
    """A whole number, also as 1e6 or 20_000."""
    try:
        value = float(texts[0].replace("_", ""))
        if value.is_integer():
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"{texts[0]} is not a whole number, such as 20000, 20_000 or 2e4")


Count = Annotated[
    int,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=count,
        is_instance=lambda x: isinstance(x, int),
        str_from_instance=lambda x: [str(x)],
    ),
]


@dataclass(frozen=True)
class RunConfig(Generic[AgentConfig, HyperText]):
    """A whole run. Everything is counted in environment steps, summed over a member's environments."""

    algorithm: tyro.conf.Suppress[str]
    agent: AgentConfig
    """The agent: what never changes in a run."""
    hyper: HyperText
    """Hyper-parameters: a number, or a schedule over environment steps, KIND:START:END[:STEPS] with KIND one of
    linear, exponential, cosine; for example linear:0.3:0.05."""
    env: str = "pendulum"
    """The environment; `covey envs` lists them."""
    steps: Count = 20_000
    """Environment steps of each member."""
    seed: int = 0
    """Seed of the first member; member i has seed + i."""
    seeds: int = 1
    """Members that differ in their seed alone, trained together in one program."""
    envs: int = 1
    """Environments of each member."""
    warmup: Count = 1_000
    """Uniformly random steps before the first update."""
    updates_per_step: float = 1.0
    """Gradient updates per environment step."""
    capacity: Count = 0
    """Steps that the replay of each member holds; 0 means all of the run and of --replay, at most a million."""
    replay: str = ""
    """A file that `covey replay` saved: the run starts with its data, and --warmup may be 0."""
    evaluations: int = 20
    """Evaluations in the run, evenly spaced, besides the one before training."""
    episodes: int = 20
    """Episodes per evaluation."""
    population_axis: Literal["auto", "map", "vmap"] = "auto"
    """Members in turn (map), in lock-step (vmap), or what was measured to be faster for the network's width."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Matrix products of the networks: float32, or rounded to bfloat16 and summed up in float32. Parameters stay
    float32 either way."""
    overlap: bool = True
    """Environments that run on the host: step them while the device learns, with a policy up to two blocks old. Without
    it, every step is learned from before the next."""
    workers: int = 0
    """Environments that run on the host: processes that step them; 0 for none but the training itself."""
    checkpoint_minutes: float = 1.0
    """Wall time between checkpoints; longer where they would cost more than 3 % of the time."""
    devices: int = 0
    """Devices of each process that share its members: a number of accelerators or of a CPU's cores; 0 means as many as
    there are that the members can be divided by."""
    engine: Literal["local", "envpool", "ray"] = "local"
    """What runs it: this process and those that you start; the same with EnvPool for the simulator of `gymnasium:ID`;
    or, for `covey evolve`, Ray, which starts islands of members."""
    pbt: tyro.conf.Suppress[PBT | None] = None
    """How the members are tuned while they learn, if they are (`covey evolve`)."""
    space: tyro.conf.Suppress[Any] = None
    """Where they are then searched: texts in the shape of `hyper`."""
    islands: tyro.conf.Suppress[int] = 0
    """How many islands; 0 means 4 with `ray`, and otherwise 1."""

    def check(self) -> None:
        """Raises a CoveyError for values that can't make a run."""
        check_numbers(self)
        for name in ("steps", "seeds", "envs", "warmup", "updates_per_step", "evaluations", "episodes"):
            value = getattr(self, name)
            if name == "warmup" and value == 0 and self.replay:
                continue
            require(value > 0, f"--{name.replace('_', '-')} must be positive, not {value}.")
        for name in ("capacity", "workers"):
            require(getattr(self, name) >= 0, f"--{name} must not be negative, not {getattr(self, name)}.")
        require(
            self.workers <= self.envs * self.seeds,
            f"--workers {self.workers} are more than the {self.envs * self.seeds} environments. Raise --envs.",
        )
        require(
            self.checkpoint_minutes >= 0, f"--checkpoint-minutes must not be negative, not {self.checkpoint_minutes:g}."
        )
        require(
            self.steps > self.warmup,
            f"--steps {self.steps} ends within the warm-up of {self.warmup} random steps, so nothing would be learned. "
            f"Raise --steps above {self.warmup}, or lower --warmup.",
        )
        require(
            self.seed >= -(2**31) and self.seed + self.seeds <= 2**31,
            f"--seed {self.seed} is out of range: every member's must lie between {-(2**31)} and {2**31 - 1}.",
        )
        require(self.devices >= 0, f"--devices must not be negative, not {self.devices}.")
        if self.pbt is not None:
            _check_evolution(self, self.pbt)
        choices = {
            "population_axis": ("auto", "map", "vmap"),
            "precision": ("float32", "bfloat16"),
            "engine": ("local", "envpool", "ray"),
        }
        for name, known in choices.items():
            value = getattr(self, name)
            require(value in known, f"--{name.replace('_', '-')} must be one of {', '.join(known)}, not {value!r}.")
        require(self.islands >= 0, f"--islands must not be negative, not {self.islands}.")
        require(self.engine == "ray" or self.islands <= 1, f"--islands {self.islands} needs --engine ray.")
        require(self.engine != "ray" or self.pbt is not None, "--engine ray is for `covey evolve`.")
        require(
            self.engine != "envpool" or self.env.startswith("gymnasium:"),
            f"--engine envpool is for environments of Gymnasium, as gymnasium:HalfCheetah-v5; {self.env} is none.",
        )

    def resolved(self) -> "RunConfig[Any, Any]":
        """This configuration with all that depends on the run's length, its data or the folder here written out."""
        if self.engine == "envpool":
            self.check()
            env = self.env.replace("gymnasium:", "envpool:", 1)
            return dataclasses.replace(self, env=env, engine="local").resolved()
        replay = str(Path(self.replay).absolute()) if self.replay else ""
        loaded = open_replay(Path(replay)).steps if replay and not self.capacity else 0
        capacity = self.capacity or min(self.steps + loaded, MOST_REPLAY)
        # Written out, so that a longer run has generations as often, and schedules as long.
        pbt = self.pbt and dataclasses.replace(
            self.pbt, interval=self.pbt.interval or -(-self.steps // max(1, self.evaluations))
        )
        return dataclasses.replace(
            self,
            capacity=capacity,
            replay=replay,
            hyper=_texts(self.hyper, self.steps),
            pbt=pbt,
            islands=self.islands or (ISLANDS if self.engine == "ray" else 1),
        )

    @property
    def fitness(self) -> str:
        """What members are ranked by: `return`, or the name of a measure of skills."""
        asked = self.pbt.fitness if self.pbt else ""
        return asked or ("information" if agents.entry(self.algorithm).is_skill_agent else "return")

    def searched(self) -> Space:
        """The ranges of what is tuned: by `covey evolve` alone, and never a hyper-parameter that has a schedule."""
        if self.pbt is None:
            return {}
        entry, found = agents.entry(self.algorithm), {}
        schedules, texts = by_name(self.schedules()), _flat(self.space)
        for name, allowed in entry.space.items():
            flag, constant = f"--space.{name.replace('_', '-')}", schedules[name].kind == "constant"
            space = parse_range(flag, texts[name], allowed)
            require(
                constant or space is None or texts[name] == range_text(allowed),
                f"{flag} can't be searched: it follows the schedule {schedules[name]}. Give a number: --hyper.{name}.",
            )
            if space is not None and constant:
                found[name] = space
        return found

    def schedules(self) -> Any:
        """The hyper-parameters' schedules, in the shape of the agent's Hyper."""
        entry = agents.entry(self.algorithm)
        schedules = _schedules(entry.hyper(), self.hyper, self.steps, "--hyper")
        for path, schedule in jax.tree.flatten_with_path(schedules)[0]:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            allowed = entry.space[name]
            for value in (schedule.start, schedule.end):
                require(
                    allowed.least <= value <= allowed.most,
                    f"--hyper.{name.replace('_', '-')} must lie between {allowed.least:g} and {allowed.most:g}, not "
                    f"{value:g}. (Searched from {allowed.low:g} to {allowed.high:g}.)",
                )
        return schedules


def _check_evolution(config: RunConfig[Any, Any], pbt: PBT) -> None:
    require(
        config.seeds >= 2 or pbt.bottom == 0,
        f"--members must be at least 2, not {config.seeds}: nobody could be copied.",
    )
    replaced = round(pbt.bottom * config.seeds)
    require(
        replaced > 0 or pbt.bottom == 0,
        f"--pbt.bottom {pbt.bottom:g} of {config.seeds} members is less than one. Raise it to at least "
        f"{1 / config.seeds:.2g}, or give 0 to replace none.",
    )
    config.searched()


def _flat(texts: Any, path: str = "") -> dict[str, str]:
    """The texts of a nested dataclass by their dotted names."""
    found = {}
    for f in dataclasses.fields(texts):
        value = getattr(texts, f.name)
        nested = dataclasses.is_dataclass(value)
        found |= _flat(value, f"{path}{f.name}.") if nested else {f"{path}{f.name}": value}
    return found


def _schedules(default: Any, texts: Any, steps: int, path: str) -> Any:
    parts = []
    for name, value in default._asdict().items():
        flag, text = f"{path}.{name.replace('_', '-')}", getattr(texts, name)
        nested = hasattr(value, "_asdict")
        parts.append(_schedules(value, text, steps, flag) if nested else parse_schedule(flag, text, steps))
    return type(default)(*parts)


def _texts(texts: Any, steps: int, path: str = "--hyper") -> Any:
    """Every schedule with its length written out, so that a longer run does not stretch it."""
    changes = {}
    for f in dataclasses.fields(texts):
        value, flag = getattr(texts, f.name), f"{path}.{f.name.replace('_', '-')}"
        nested = dataclasses.is_dataclass(value)
        changes[f.name] = _texts(value, steps, flag) if nested else str(parse_schedule(flag, value, steps))
    return dataclasses.replace(texts, **changes)


@functools.cache
def hyper_text(hyper: Any) -> Any:
    """The dataclass of texts that the command line shows for a Hyper type."""
    defaults = {name: _as_text(value) for name, value in hyper()._asdict().items()}
    fields = [(name, type(value), field(default=value)) for name, value in defaults.items()]
    return dataclasses.make_dataclass(f"{hyper.__name__}Text", fields, frozen=True)


def _as_text(value: Any) -> Any:
    """A hyper-parameter as its text; a nested Hyper as the dataclass of its texts, with its own values."""
    if not hasattr(value, "_asdict"):
        return repr(value)
    return hyper_text(type(value))(**{name: _as_text(each) for name, each in value._asdict().items()})


@functools.cache
def space_text(algorithm: str) -> Any:
    """The dataclass of ranges as texts, LOW:HIGH:SCALE or off, in the shape of an algorithm's Hyper."""
    entry = agents.entry(algorithm)
    return _space_text(entry.hyper(), {name: range_text(space) for name, space in entry.space.items()}, "")


def _space_text(hyper: Any, texts: dict[str, str], path: str) -> Any:
    values = {
        name: _space_text(value, texts, f"{path}{name}.") if hasattr(value, "_asdict") else texts[f"{path}{name}"]
        for name, value in hyper._asdict().items()
    }
    fields = [(name, type(value), field(default=value)) for name, value in values.items()]
    return dataclasses.make_dataclass(f"{type(hyper).__name__}Space", fields, frozen=True)()


def config_type(algorithm: str) -> Any:
    """The RunConfig type of an algorithm."""
    entry = agents.entry(algorithm)
    return RunConfig[entry.config, hyper_text(entry.hyper)]


def default_config(algorithm: str, **values: Any) -> RunConfig[Any, Any]:
    entry = agents.entry(algorithm)
    known = {f.name for f in dataclasses.fields(RunConfig)} - {"algorithm", "agent", "hyper"}
    for name in values:
        if name not in known | {"agent", "hyper"}:
            raise unknown("option", name, known | {"agent", "hyper"})
    hyper = values.pop("hyper", {})
    if isinstance(hyper, dict):
        hyper = from_json(hyper_text(entry.hyper), _strings(hyper), "hyper")
    agent = values.pop("agent", {})
    if isinstance(agent, dict):
        agent = from_json(entry.config, agent, "agent")
    values |= _evolution(algorithm, values)
    values = {name: _fitting(name, value) for name, value in values.items()}
    return RunConfig(algorithm=algorithm, agent=agent, hyper=hyper, **values)


def _evolution(algorithm: str, values: dict[str, Any]) -> dict[str, Any]:
    """The options `pbt` and `space` as what they are, from dictionaries."""
    pbt, space = values.get("pbt"), values.get("space")
    if isinstance(pbt, dict):
        pbt = from_json(PBT, pbt, "pbt")
    if isinstance(space, dict) or (space is None and pbt is not None):
        default = space_text(algorithm)
        space = from_json(type(default), _strings(space or {}), "space", default)
    return {"pbt": pbt, "space": space}


def _strings(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _strings(x) if isinstance(x, dict) else str(x) for name, x in values.items()}


def _fitting(name: str, value: Any) -> Any:
    """A value for a field of RunConfig as the type that it has there; 1e6 and NumPy's numbers are whole numbers too."""
    if name in ("pbt", "space"):
        return value
    kind = type(getattr(RunConfig, name))
    value = str(value) if isinstance(value, Path) else value
    try:
        fits = kind(value) == value and isinstance(value, bool) == (kind is bool)
    except (TypeError, ValueError, OverflowError):
        fits = False
    require(fits, f"{name} must be {kind.__name__}, not {value!r}.")
    return kind(value)


def to_json(config: Any) -> Any:
    """A dataclass as JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_json(kind: Any, data: Any, path: str, default: Any = None) -> Any:
    """The dataclass of type `kind` that JSON values describe; an error names what does not fit.

    What `data` does not mention is as in `default`, an instance of `kind`; without one, as in `kind()`.
    """
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        require(isinstance(data, dict), f"{path} must be an object with fields, not {data!r}.")
        hints = get_type_hints(kind)
        names = {f.name for f in dataclasses.fields(kind)}
        for name in data:
            if name not in names:
                raise unknown(f"field of {path}", name, names)
        start = kind() if default is None else default
        values = {n: from_json(hints[n], value, f"{path}.{n}", getattr(start, n)) for n, value in data.items()}
        return dataclasses.replace(start, **values)
    if get_origin(kind) is tuple:
        require(isinstance(data, list | tuple), f"{path} must be a list, not {data!r}.")
        return tuple(from_json(get_args(kind)[0], x, path) for x in data)
    if get_origin(kind) is Literal:
        require(data in get_args(kind), f"{path} must be one of {', '.join(map(str, get_args(kind)))}, not {data!r}.")
        return data
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    require(type(data) is kind, f"{path} must be {kind.__name__}, not {data!r}.")
    return data


def load_config(path: Path) -> RunConfig[Any, Any]:
    """The configuration in a file that the user named, which may have been edited."""
    return as_config(read_config(path, follow=True), path)


def as_config(values: dict[str, Any], path: Path) -> RunConfig[Any, Any]:
    """The configuration that values from a file describe; an error names what does not fit."""
    data = {name: value for name, value in values.items() if name not in (DIGEST, CHANGES)}
    for name in ("pbt", "space"):
        require(isinstance(data.get(name), dict | None), f"{path}: {name} must be an object, not {data.get(name)!r}.")
    entry = agents.entry(data["algorithm"])
    agent = from_json(entry.config, data.pop("agent", {}), "agent")
    hyper = from_json(hyper_text(entry.hyper), data.pop("hyper", {}), "hyper")
    names = {f.name: f for f in dataclasses.fields(RunConfig)}
    evolution = _evolution(data["algorithm"], {n: data.pop(n, None) for n in ("pbt", "space")})
    for name, value in data.items():
        if name not in names:
            raise unknown("option", name, names)
        default = names[name].default
        fits = type(value) is type(default) or (isinstance(default, float) and type(value) is int)
        require(
            default is dataclasses.MISSING or fits, f"{path}: {name} must be {type(default).__name__}, not {value!r}."
        )
    return RunConfig(agent=agent, hyper=hyper, **data, **evolution).resolved()


def read_run_config(folder: RunFolder) -> RunConfig[Any, Any]:
    """Reads the configuration of a run folder; an error if it was altered."""
    return as_config(folder.read_config(), folder.config)


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """The fields in which two configurations differ: name, old value, new value."""
    found = []
    for f in dataclasses.fields(old):
        before, after, name = getattr(old, f.name), getattr(new, f.name), f"{path}{f.name}"
        if dataclasses.is_dataclass(before) and type(before) is type(after):
            found += differences(before, after, f"{name}.")
        elif before != after:
            found.append((name, before, after))
    return found
