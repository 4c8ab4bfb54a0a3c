"""The command line: one command per intention, each a thin call into the library."""

import gc
import sys

from covey.cli import catalogue, completion, export, listing, runs, training, web
from covey.cli.arguments import UsageError, import_plugins
from covey.cli.flags import with_flags
from covey.cli.help import overview, wrapped
from covey.cli.plugin_note import plugin_note
from covey.errors import CoveyError, unknown

VERBS = {
    "train": training.train,
    "evolve": training.evolve,
    "resume": training.resume,
    "runs": listing.runs,
    "eval": runs.eval,
    "watch": web.watch,
    "doctor": runs.doctor,
    "plot": runs.plot,
    "skills": runs.skills,
    "plan": runs.plan,
    "lineage": runs.lineage,
    "replay": runs.replay,
    "video": runs.video,
    "report": runs.report,
    "export": export.export,
    "push": export.push,
    "load": export.load,
    "envs": catalogue.envs,
    "check-env": catalogue.check_env,
    "agents": catalogue.agents,
    "presets": catalogue.presets,
    "recipes": catalogue.recipes,
    "completion": completion.completion,
}


OBJECTS_PER_COLLECTION = 100_000
"""New objects before Python collects garbage, by default 700. Importing and tracing create millions that stay."""


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Returns:
        Its exit code: 0; 2 for a command line that can't be understood; 130 after Ctrl-C; 1 for any other error.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(import_plugins(list(arguments)))
    except CoveyError as error:
        text = f"covey: {with_flags(error, arguments)}{plugin_note(arguments)}"
        print(wrapped(text) if sys.stderr.isatty() else text, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        return _version()
    if arguments[0] == completion.VERB:
        completion.answer(arguments[1:])
        return 0
    if arguments[0] not in VERBS:
        raise UsageError(str(unknown("command", arguments[0], VERBS)))
    from covey.signals import LISTENER

    with LISTENER.listening():
        VERBS[arguments[0]](arguments[1:])
    return 0


def entry() -> None:
    """The `covey` command."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    sys.exit(main())


def _version() -> int:
    from covey import __version__

    print(__version__)
    return 0
