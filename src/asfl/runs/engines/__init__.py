"""Where many runs are trained: processes of this machine, or the workers of a Ray cluster. Same jobs, same events."""

from collections.abc import Callable, Sequence
from typing import Protocol

from asfl.runs.jobs import Ended, Event, Job
from asfl.runs.watching import ShouldStop

OnEvent = Callable[[Job, Event], None]


class Engine(Protocol):
    def __call__(
        self, jobs: Sequence[Job], *, on_event: OnEvent = ..., should_stop: ShouldStop = ...
    ) -> dict[str, Ended]:
        """Train every job; say, by name, how each job ended that was started.

        `should_stop` is asked a few times a second; once it says so, nothing new is started and what runs is stopped.
        """
        ...
