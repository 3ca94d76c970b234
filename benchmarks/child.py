"""A process that answers JSON lines on its standard input with JSON lines on its standard output."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Libraries read these once, when they are loaded.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
TIMERS = {"processor": signal.ITIMER_PROF, "elapsed": signal.ITIMER_REAL}
STOPPED = (-signal.SIGPROF, -signal.SIGALRM)
ENDED = "the process has ended with"


class Ended(Exception):
    """The process ended without an answer; ``stopped`` says whether by the limit of a request."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the worker has ended with {code}")
        self.stopped = code in STOPPED


class Child:
    """Runs a command that calls `serve`, with threads for each library, and with a further environment."""

    def __init__(self, command: Sequence[str], threads: int = 1, environment: Mapping[str, str] | None = None) -> None:
        variables = {**os.environ, **dict.fromkeys(THREADS, str(threads)), **(environment or {})}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )

    def answer(self) -> Any:
        """Return the next line; `Ended` where none comes any more."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise Ended(self.process.wait())
        found = json.loads(line)
        if isinstance(found, dict) and ENDED in found:
            raise Ended(found[ENDED])
        return found

    def ask(self, request: Mapping[str, Any]) -> Any:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Ended(self.process.wait()) from None
        return self.answer()

    def end(self) -> None:
        """Close its input, at whose end it ends."""
        if self.process.poll() is None:
            self.process.communicate()


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer all requests; one beyond its ``limit`` (``{"processor" | "elapsed": seconds}``) ends its process."""
    # That is a fork of this one, which has only imported: the next takes its place at once.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # all that libraries print goes to standard error
    while (pid := os.fork()) != 0:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0:
            return
        print(json.dumps({ENDED: code}), file=out)
    for line in sys.stdin:
        request = json.loads(line)
        limits = {TIMERS[kind]: float(seconds) for kind, seconds in request.pop("limit", {}).items()}
        # The signals' own effect ends a process within C code too, where no handler of Python's would run.
        for timer, seconds in limits.items():
            signal.setitimer(timer, seconds)
        found = answer(request)
        for timer in limits:
            signal.setitimer(timer, 0)
        print(json.dumps(found), file=out)
    os._exit(0)
