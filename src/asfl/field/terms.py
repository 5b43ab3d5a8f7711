"""What server and client agree on when they meet: which run this is, and who of its clients comes."""

from dataclasses import dataclass

from pydantic import ValidationError

from asfl.config import Config
from asfl.config.explain import explain
from asfl.errors import AsflError
from asfl.field.wire import Message
from asfl.schemes import scheme_named

_MOST_THREADS = 4096


@dataclass(frozen=True)
class Terms:
    """A run."""

    config: Config
    scheme: str
    threads: int
    """PyTorch's, on the server; another number on a client may round differently."""

    def welcome(self, client: int) -> Message:
        """For this client."""
        config = self.config.model_dump(mode="json")
        return Message("welcome", {"config": config, "scheme": self.scheme, "threads": self.threads, "client": client})

    @classmethod
    def of(cls, welcome: Message) -> tuple["Terms", int]:
        """The terms in a welcome, and the client it is for."""
        try:
            config = Config.model_validate(welcome.fields.get("config"))
        except ValidationError as error:
            raise AsflError(f"the server's configuration: {explain(error, Config)}") from None
        scheme = scheme_named(welcome.text("scheme")).name
        terms = cls(config, scheme, welcome.whole("threads", least=1, most=_MOST_THREADS))
        return terms, welcome.whole("client", most=config.scenario.clients - 1)
