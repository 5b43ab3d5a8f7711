"""What a service says while it runs: a line each on stderr, for people or for programs."""

import json
import logging
import sys
from datetime import UTC, datetime


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts)


def log_to_stderr(*, as_json: bool) -> None:
    """Everything of asfl from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_AsJson() if as_json else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("asfl")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
