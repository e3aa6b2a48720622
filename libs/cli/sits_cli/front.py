"""The front door through an ordinary tritonclient, with errors that say what to do.

tritonclient and its numpy take longer than most commands: who calls imports them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sits_cli.client import MAX_MESSAGE_BYTES, Place, did_you_mean, failed
from sits_core.rpc import Options, message_options
from sits_core.tls import client_tls_from

# tritonclient has no types.
Client = Any
Message = Any


class Credential:
    """A plugin that adds the API key, or else the admin token, to every call of a client."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __call__(self, request: Any) -> None:
        request.headers["authorization"] = f"Bearer {self._secret}"


@contextmanager
def connected(place: Place, model: str = "") -> Iterator[Client]:
    """A client of the front door; its failed calls become `CliError`s, which name others like
    `model` when that is not there."""
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    client = InferenceServerClient(place.address, **_tls())
    secret = os.environ.get("SITS_CLI_API_KEY") or os.environ.get("SITS_ADMIN_TOKEN")
    if secret:
        client.register_plugin(Credential(secret))
    try:
        yield client
    except InferenceServerException as error:
        code = (error.status() or "").rpartition(".")[2] or "UNKNOWN"
        hint = _instead_of(model, client) if code == "NOT_FOUND" else ""
        raise failed(code, (error.message() or "") + hint, place) from None
    finally:
        client.close()


def signature(tensor: Message) -> str:
    """`name FP32[-1,16]`"""
    return f"{tensor.name} {tensor.datatype}[{','.join(map(str, tensor.shape))}]"


def _instead_of(model: str, client: Client) -> str:
    from tritonclient.utils import InferenceServerException

    names: set[str] = set()
    with suppress(InferenceServerException):
        names = {entry.name for entry in client.get_model_repository_index().models}
    return f"{did_you_mean(model, names) or ':'} `sits models` lists what there is"


def _tls() -> dict[str, Any]:
    """Arguments of tritonclient for what the SITS_TLS_ variables say."""
    tls = client_tls_from(os.environ)
    if tls is None:
        return {}
    options: Options = message_options(MAX_MESSAGE_BYTES)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return {
        "ssl": True,
        "root_certificates": tls.files.ca,
        "private_key": tls.files.key,
        "certificate_chain": tls.files.cert,
        "channel_args": options,
    }
