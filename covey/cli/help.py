"""Help texts, and text that is wrapped at the width of the terminal."""

import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

from covey.cli.options import Option

COLUMN = 28
"""Where the text of an option begins; a longer flag has a line of its own."""
WIDEST = 120
TIED = "\u00a0"
"""A space at which no line is broken."""
NO_MARKS: Mapping[str, str] = {}

VERBS_HELP = {
    "train AGENT": "train an agent",
    "evolve AGENT": "train a population, and tune it meanwhile",
    "resume RUN": "resume after Ctrl-C or a crash, or train longer",
    "runs [FOLDER]": "list runs: step, return, speed, state",
    "eval RUN": "evaluate the best policy: mean, 95 % interval",
    "doctor RUN": "say why a run does not learn",
    "plot RUN...": "plot learning curves of one or more runs",
    "watch|report RUN...": "a page of runs: live with films, or as one file",
    "video RUN": "record an episode of the best policy",
    "skills RUN": "plot the trajectories of every skill",
    "plan RUN --goal 3,4": "reach goals by planning over learned skills",
    "lineage RUN": "plot a population: lineage, values, fitness",
    "replay RUN": "save the replay, to start another run with it",
    "export RUN": "write the policy to a file: ONNX, NumPy, C, JAX",
    "push|load USER/NAME": "publish a policy and its card, or download one",
    "envs [LIBRARY]": "list environments, also those of a library",
    "check-env ENV": "check an environment against the contract",
    "agents [AGENT]": "list agents and their hyper-parameters",
    "presets|recipes": "list defaults of tasks; named sets of options",
    "completion [SHELL]": "install completion for bash, zsh or fish",
}
EXAMPLES = {
    "train": (
        "covey train td3 --env pendulum",
        "covey train sac --env reacher --seeds 5 --lr 1e-3 --hidden 64 64",
        "covey train sac --env gymnasium:Hopper-v5 --steps 2e5 --out runs/hopper",
        "covey train sac --env gymnasium:Hopper-v5 --recipe crossq --hidden 256 256",
        "covey train td3 --hyper.exploration-noise linear:0.3:0.05",
    ),
    "evolve": (
        "covey evolve sac --env reacher --members 8",
        "covey evolve td3 --env pendulum --members 4 --pbt.bottom 0.5",
        "covey evolve sac --env reacher --lr 1e-3 --space.tau 1e-3:1e-1",
        "covey evolve td3 --env pendulum --engine ray --islands 2",
    ),
    "resume": ("covey resume runs/pendulum-td3-0", "covey resume runs/pendulum-td3-0 --steps 4e4 --lr 1e-4"),
    "runs": ("covey runs", "covey runs experiments --json"),
    "eval": ("covey eval runs/pendulum-td3-0 --episodes 100",),
    "watch": ("covey watch runs/pendulum-td3-0", "covey watch runs/one runs/two --port 8080 --open"),
    "doctor": ("covey doctor runs/pendulum-td3-0", "covey doctor runs/pendulum-td3-0 --json"),
    "plot": ("covey plot runs/pendulum-td3-0 runs/pendulum-sac-0 --out curves.png",),
    "report": ("covey report runs/pendulum-td3-0 runs/pendulum-sac-0 --out report.html",),
    "video": ("covey video runs/pendulum-td3-0 --out swing.mp4",),
    "skills": (
        "covey skills runs/point-free-diayn-0",
        "covey skills runs/point-free-diayn-0 --video --skills 0 3 5",
        "covey skills runs/point-free-diayn-0 --page",
    ),
    "plan": ("covey plan runs/point-free-dads-0 --goal 3,4 --goal -2,1",),
    "lineage": ("covey lineage runs/reacher-sac-0",),
    "replay": ("covey replay runs/pendulum-td3-0 --out pendulum.safetensors",),
    "export": (
        "covey export runs/pendulum-sac-0",
        "covey export runs/pendulum-sac-0 --out policy.h",
        "covey export --check policy.h runs/pendulum-sac-0",
    ),
    "push": ("covey push runs/pendulum-sac-0 me/pendulum", "covey push runs/pendulum-sac-0 ./shared"),
    "load": ("covey load me/pendulum",),
    "check-env": ("covey check-env brax:ant", "covey check-env pendulum --env-pixels 64"),
    "envs": ("covey envs", "covey envs gymnasium"),
    "agents": ("covey agents sac",),
    "presets": ("covey presets", "covey presets sac"),
    "recipes": ("covey recipes", "covey recipes sac"),
    "completion": ("covey completion --install", "covey completion zsh > ~/.zfunc/_covey"),
}


def width() -> int:
    """Returns the width of the terminal, at most 120 columns; 80 without a terminal."""
    return max(40, min(WIDEST, shutil.get_terminal_size().columns))


def wrapped(text: str, indent: str = "", first: str | None = None, columns: int | None = None) -> str:
    """Wraps text between words. Lines that begin with a space, such as commands to copy, are kept as they are."""
    wrap = textwrap.TextWrapper(
        width=columns or width(),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = (line if line.startswith(" ") else wrap.fill(line) for line in text.split("\n"))
    return "\n".join(lines).replace(TIED, " ")


def table(rows: Iterable[tuple[str, str]], column: int = COLUMN) -> str:
    """Returns two columns: names, and texts that are wrapped beside them."""
    lines = []
    for name, text in rows:
        lead = f"  {name}"
        if len(lead) > column - 2:
            lines.append(lead)
            lead = ""
        lines.append(wrapped(text, " " * column, lead.ljust(column)) if text else lead)
    return "\n".join(line for line in lines if line)


def overview() -> str:
    """Returns the help of `covey` itself."""
    verbs = table(((f"covey {name}", text) for name, text in VERBS_HELP.items()), 30)
    return f"""\
covey: train continuous-control agents in one compiled JAX program

{verbs}
{table([("--plugin MODULE, --version", "import your own module first; print the version")], 30)}
`covey COMMAND --help` explains a command. Start with: covey train td3"""


def option_rows(options: Iterable[Option], marks: Mapping[str, str] = NO_MARKS) -> str:
    """Returns the table of options: flag and type, text, default.

    Args:
        options: The options.
        marks: Where the default of an option comes from, by its path, if not from covey: "from the preset".
    """
    rows = []
    for each in options:
        origin = f", {marks[each.path]}" if each.path in marks else ""
        explained = not each.default or "by default" in each.text
        default = "" if explained else f"(default:{TIED}{each.default}{origin.replace(' ', TIED)})"
        name = " ".join([", ".join(each.flags) or each.metavar, each.metavar if each.flags else ""]).strip()
        rows.append((name, f"{each.text} {default}".strip()))
    return table(rows)


def command_help(
    verb: str, usage: str, text: str, *sections: tuple[str, str], end: str = "", examples: Sequence[str] = ()
) -> str:
    """Returns the help of a command: usage, text, examples, sections with a title, and a last paragraph."""
    lines = "\n".join(f"  {line}" for line in examples or EXAMPLES[verb])
    parts = [wrapped(f"usage: {usage}", "    ", ""), wrapped(text), f"examples:\n{lines}"]
    parts += [f"{wrapped(title)}\n{body}" for title, body in sections if body]
    return "\n\n".join([*parts, *([wrapped(end)] if end else [])])


def grouped(
    options: Iterable[Option], title: Callable[[str], str], marks: Mapping[str, str] = NO_MARKS
) -> list[tuple[str, str]]:
    """Returns a section for each group of options, in the order in which they first appear."""
    groups: dict[str, list[Option]] = {}
    for each in options:
        groups.setdefault(each.group, []).append(each)
    return [(title(group), option_rows(members, marks)) for group, members in groups.items()]
