"""What devices may reach of a SuperLink: `python -m asfl.field.flower.gate --listen 192.168.1.10:9092 …`.

Flower's SuperLink has one port for everything. Behind /v1/fleet/ are the calls of SuperNodes, signed with their keys.
Behind /v1/control/ anybody who reaches the port can start a run, which is code on the server. So the SuperLink stays on
the loopback address, and this gate passes on the calls of SuperNodes, and nothing else. Who opens many connections, or
sends a request in small pieces, is closed out (`asfl.field.flower.door`).
"""

import argparse
import asyncio
import re
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from asfl.config.errors import AsflError
from asfl.field.flower.door import Door, PunctualProtocol
from asfl.field.stream.common import check_address

FLEET = "/v1/fleet/"
LARGEST_BODY = 1 << 20
"""Sessions are a few kilobytes; tensors don't come this way."""
_CALL = re.compile("[a-z-]{1,64}")
"""One word behind the prefix: no way out of it by dots and slashes."""
_BODY_WITHIN_S = 30.0
_ANSWER_WITHIN_S = 60.0
_OF_ONE_CONNECTION = {"connection", "content-length", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}


def gate(superlink: str, authority: Path) -> Starlette:
    """An application that hands calls of SuperNodes to a SuperLink, whose certificate is checked."""
    client = httpx.AsyncClient(
        base_url=superlink,
        verify=ssl.create_default_context(cafile=str(authority)),
        timeout=_ANSWER_WITHIN_S,
        trust_env=False,
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    async def pass_on(request: Request) -> Response:
        call = request.path_params["call"]
        if _CALL.fullmatch(call) is None:
            return Response(status_code=404)
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_WITHIN_S):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > LARGEST_BODY:
                        return Response("too long", status_code=413)
        except TimeoutError:
            return Response("too slow", status_code=408)
        except ClientDisconnect:
            return Response(status_code=400)
        headers = [(name, value) for name, value in request.headers.items() if name not in _OF_ONE_CONNECTION]
        try:
            answer = await client.post(FLEET + call, content=bytes(body), headers=headers)
        except httpx.HTTPError:
            return Response("the SuperLink doesn't answer", status_code=503)
        passed = {name: value for name, value in answer.headers.items() if name not in _OF_ONE_CONNECTION}
        passed.pop("content-encoding", None)  # httpx has decoded it
        return Response(answer.content, answer.status_code, passed)

    return Starlette(routes=[Route(FLEET + "{call:str}", pass_on, methods=["POST"])], lifespan=lifespan)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m asfl.field.flower.gate", description="A gate for SuperNodes.")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where SuperNodes call")
    parser.add_argument("--superlink", default="127.0.0.1:8000", metavar="HOST:PORT", help="the SuperLink behind it")
    parser.add_argument(
        "--certificates", required=True, type=Path, metavar="DIR", help="server.pem, server.key, authority.pem"
    )
    options = parser.parse_args(words)
    for address in (options.listen, options.superlink):
        check_address(address, encrypted=True)
    files = {name: options.certificates / name for name in ("authority.pem", "server.pem", "server.key")}
    for file in files.values():
        if not file.is_file():
            raise AsflError(f"{file}: no such file")
    host, _, port = options.listen.rpartition(":")
    try:
        door = Door.at(host.strip("[]"), int(port))
    except OSError as error:
        raise AsflError(f"can't listen on {options.listen}: {error.strerror or error}") from None
    app = gate(f"https://{options.superlink}", files["authority.pem"])
    with door:
        served(app, files["server.pem"], files["server.key"]).run(sockets=[door])


def served(app: Starlette, certificate: Path, key: Path) -> uvicorn.Server:
    """The server of a gate, to be run on a `Door`."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=PunctualProtocol,
        ws="none",
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        log_level="warning",
        server_header=False,
    )
    return uvicorn.Server(config)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except AsflError as mistake:
        sys.exit(f"error: {mistake}")
