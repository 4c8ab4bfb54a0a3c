"""Shell completion: `covey completion --install`, and the answers for the shell's completion function.

The shell asks `covey __complete SHELL LINE` at every TAB, so the answer may not import jax. The options of the agents
and the environments of installed libraries come from a file in the user's cache folder. `--install` writes it. If the
sources or the installed packages have changed since, a process in the background writes it again.
"""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from covey.cli.arguments import parse, usage
from covey.cli.catalogue import is_installed
from covey.cli.options import Option, options_of

VERB = "__complete"
BUILD = "--build"
SHELLS = ("bash", "zsh", "fish")
BUILD_SECONDS = 120
TAKES_RUN = ("resume", "eval", "watch", "doctor", "plot", "video", "skills", "plan", "lineage", "replay", "report")
HELP = ("--help", "--plugin")

SCRIPTS = {
    "bash": """\
# Completion of covey for bash. Written by `covey completion bash`; delete this file to remove it.
_covey() {
    local IFS=$'\\n'
    COMPREPLY=($("${1/#\\~/$HOME}" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -F _covey covey
""",
    "zsh": """\
#compdef covey
# Completion of covey for zsh. Written by `covey completion zsh`; delete this file to remove it.
_covey() {
    local -a found
    found=("${(@f)$(${~words[1]} __complete zsh "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n ${found[1]} ]]; then compadd -a found; else _files; fi
}
if [[ ${funcstack[1]} == _covey ]]; then _covey "$@"; else compdef _covey covey; fi
""",
    "fish": """\
# Completion of covey for fish. Written by `covey completion fish`; delete this file to remove it.
function __covey_complete
    set -l words (commandline -opc)
    set -l found (eval $words[1] __complete fish (string escape -- (commandline -cp | string collect)) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c covey -f -a '(__covey_complete)'
""",
}


@dataclass(frozen=True)
class CompletionOptions:
    """Prints the script that completes commands, agents, environments, runs and options, or installs it."""

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"] | None] = None
    """The shell; by default the one of this user."""
    install: bool = False
    """Write the script into the user's folder for completions."""


def completion(arguments: list[str]) -> None:
    options = parse(CompletionOptions, arguments, "completion")
    shell = options.shell or Path(os.environ.get("SHELL", "")).name
    usage(shell in SHELLS, f"Name a shell: {', '.join(SHELLS)}; as in `covey completion bash --install`.")
    if not options.install:
        print(SCRIPTS[shell], end="")
        return
    file = script_file(shell)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SCRIPTS[shell])
    build()
    print(f"Wrote {file}")
    steps = {
        "bash": f"Open a new shell. Without the package bash-completion, add to ~/.bashrc:\n  source {file}",
        "zsh": f"Add to ~/.zshrc, before compinit, and open a new shell:\n  fpath+=({file.parent})",
        "fish": "Open a new shell.",
    }
    print(f"{steps[shell]}\nTo remove it, delete the file.")


def script_file(shell: str) -> Path:
    """Returns the file in which a shell looks for the completion of `covey`."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    if shell == "bash":
        return Path(os.environ.get("BASH_COMPLETION_USER_DIR") or data / "bash-completion") / "completions" / "covey"
    if shell == "zsh":
        return data / "zsh" / "site-functions" / "_covey"
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / "covey.fish"


def answer(arguments: list[str]) -> None:
    """Prints the completions of a command line up to the cursor, one per line: `SHELL LINE`, or builds the cache."""
    if arguments == [BUILD]:
        build()
        return
    shell, line = arguments
    found = complete(line, known())
    if shell == "bash":  # for bash, a colon ends a word
        word = line.rpartition(" ")[2]
        found = [each[word.rindex(":") + 1 :] if ":" in word else each for each in found]
    print("\n".join(found))


def complete(line: str, cache: dict[str, Any]) -> list[str]:
    """Returns the completions of the last word of a command line; none where the shell should complete files.

    Args:
        line: The command line up to the cursor.
        cache: What `build` has stored.
    """
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # an open quote
        words = line.split()[1:]
    word = "" if not words or line[-1:].isspace() else words.pop()
    while words[:1] == ["--plugin"] and len(words) > 1:
        words = words[2:]
    return [each for each in _candidates(words, word, cache) if each.startswith(word)]


def _candidates(words: list[str], word: str, cache: dict[str, Any]) -> list[str]:
    if not words:
        return [*cache["verbs"], "--help", "--version", "--plugin"]
    verb, *rest = words
    flags = _flags(verb, rest, cache)
    if word.startswith("-"):
        return [*flags, *HELP]
    kind = flags.get(rest[-1]) if rest else None
    if kind:  # the value of a flag
        values = {"ENV": cache["envs"], "RUN": runs(word)}
        return kind if isinstance(kind, list) else values.get(kind, [])
    return _arguments(verb, [each for each in rest if not each.startswith("-")], word, cache)


def _arguments(verb: str, given: list[str], word: str, cache: dict[str, Any]) -> list[str]:
    """Returns what may follow a verb that has the given arguments so far."""
    if verb in TAKES_RUN and (not given or verb in ("plot", "report", "watch")):
        return runs(word)
    if given:
        return []
    if verb in ("train", "evolve", "agents", "presets", "recipes"):
        return [*cache["agents"]]
    choices = {"check-env": cache["envs"], "envs": cache["libraries"], "completion": list(SHELLS)}
    return choices.get(verb, [])


def _flags(verb: str, rest: list[str], cache: dict[str, Any]) -> dict[str, Any]:
    """Returns the flags of a command, and what their values are: choices, or the name of a type."""
    if verb not in ("train", "evolve", "resume"):
        return cache["verbs"].get(verb, {})
    name = rest[0] if rest else ""
    if verb == "resume":
        with suppress(OSError, ValueError, AttributeError):
            name = json.loads((Path(name) / "config.json").read_text()).get("algorithm", "")
    return cache["agents"].get(name.casefold().replace("_", "-"), {}).get(verb, {})


def runs(word: str) -> list[str]:
    """Returns the run folders in `runs`, or in the folder that a word begins with."""
    parent = Path(word).parent if "/" in word else Path("runs")
    return sorted(str(found.parent) for found in parent.glob("*/config.json"))


def known() -> dict[str, Any]:
    """Returns what `build` has stored, and has it stored again in the background if it is out of date."""
    found: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        found = json.loads(cache_file().read_text())
    if found.get("state") != state():
        _build_in_background()
    return {"verbs": {verb: {} for verb in _verbs()}, "agents": {}, "envs": [], "libraries": []} | found


def cache_file() -> Path:
    """Returns the file that holds what completion knows."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "covey" / "completion.json"


def state() -> list[str]:
    """Returns what changes when covey's sources or the installed packages do."""
    sources = Path(__file__).parents[1].rglob("*.py")
    packages = os.stat(sysconfig.get_paths()["purelib"]).st_mtime_ns
    return [sys.prefix, str(packages), str(max(path.stat().st_mtime_ns for path in sources))]


def _build_in_background() -> None:
    mark = cache_file().with_suffix(".building")
    with suppress(OSError):
        if mark.exists() and time.time() - mark.stat().st_mtime < BUILD_SECONDS:
            return
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        nowhere = subprocess.DEVNULL
        command = [sys.executable, "-m", "covey", VERB, BUILD]
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)


def build() -> None:
    """Stores the options of every command and agent, and the environments of installed libraries."""
    from covey import agents, envs

    libraries = [prefix for prefix in envs.ADAPTERS if is_installed(prefix)]
    listed = []
    for prefix in libraries:
        with suppress(Exception):  # a library that is installed but does not work
            listed += [f"{prefix}:{name}" for name in envs.adapter(prefix).names()]
    found = {
        "state": state(),
        "verbs": {verb: _values(options_of(kind)) for verb, kind in _verbs().items()},
        "agents": {name: _agent_options(name) for name in agents.REGISTRY},
        "envs": [*envs.names(), *listed],
        "libraries": libraries,
    }
    file = cache_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(found))
    partial.replace(file)


def _verbs() -> dict[str, Any]:
    """Returns every command, and the dataclass of its options where it has its own."""
    from covey.cli import VERBS, catalogue, export, listing, runs, web

    @dataclass(frozen=True)
    class Nothing:
        """A command without options, or with those of an agent."""

    kinds = dict.fromkeys(VERBS, Nothing)
    own = {"eval": runs.EvalOptions, "plot": runs.PlotOptions, "skills": runs.SkillsOptions}
    own |= {"doctor": runs.DoctorOptions}
    own |= {"lineage": runs.LineageOptions, "replay": runs.ReplayOptions, "video": runs.VideoOptions}
    own |= {"report": runs.ReportOptions, "check-env": catalogue.CheckOptions}
    own |= {"export": export.ExportOptions, "push": export.PushOptions, "load": export.LoadOptions}
    own |= {"runs": listing.RunsOptions, "watch": web.WatchOptions}
    return kinds | own | {"completion": CompletionOptions}


def _agent_options(name: str) -> dict[str, dict[str, Any]]:
    from covey.cli.training import JobOptions, ResumeOptions, evolve_options, train_options
    from covey.launch import RESUMABLE
    from covey.run.config import default_config

    default = default_config(name, pbt={})
    training = train_options(name, default)
    resumable = [each for each in training if each.path.partition(".")[0] in RESUMABLE]
    resuming = [*resumable, *options_of(ResumeOptions), *options_of(JobOptions)]
    chosen = {"train": training, "evolve": evolve_options(name, default), "resume": resuming}
    return {verb: _values(options) for verb, options in chosen.items()}


def _values(options: Iterable[Option]) -> dict[str, Any]:
    """Returns flags, and what their values are: choices, or the name of a type."""
    return {flag: list(each.choices) or each.metavar for each in options for flag in each.flags}
