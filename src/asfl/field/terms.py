"""What server and client agree on when they meet: which run this is, and who of its clients comes."""

from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from asfl.config import Config
from asfl.config.explain import explain
from asfl.errors import AsflError
from asfl.field.shaping import ShapedLink, links_of
from asfl.field.wire import Message
from asfl.schemes import scheme_named

_MOST_THREADS = 4096
_SHAPING = TypeAdapter(tuple[ShapedLink, ...])


@dataclass(frozen=True)
class Terms:
    """A run."""

    config: Config
    scheme: str
    threads: int
    """PyTorch's, on the server; another number on a client may round differently."""
    shaping: tuple[ShapedLink, ...] = ()
    """Links made slow on purpose; a client knows its own."""

    def welcome(self, client: int) -> Message:
        """For this client."""
        return Message(
            "welcome",
            {
                "config": self.config.model_dump(mode="json"),
                "scheme": self.scheme,
                "threads": self.threads,
                "client": client,
                "shaping": [link.model_dump(mode="json") for link in links_of(client, self.shaping)],
            },
        )

    @classmethod
    def of(cls, welcome: Message) -> tuple["Terms", int]:
        """The terms in a welcome, and the client it is for."""
        try:
            config = Config.model_validate(welcome.fields.get("config"))
        except ValidationError as error:
            raise AsflError(f"the server's configuration: {explain(error, Config)}") from None
        try:
            shaping = _SHAPING.validate_python(welcome.fields.get("shaping", []))
        except ValidationError as error:
            raise AsflError(f"the server's shaping: {error.errors()[0]['msg']}") from None
        scheme = scheme_named(welcome.text("scheme")).name
        terms = cls(config, scheme, welcome.whole("threads", least=1, most=_MOST_THREADS), shaping)
        return terms, welcome.whole("client", most=config.scenario.clients - 1)
