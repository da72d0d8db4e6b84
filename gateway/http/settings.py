"""Settings of the token for changes over HTTP, the same for gateway and bookie."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr

from bookgate.ledger.errors import IncorrectParameterException


class HttpSettings(BaseModel):
    """A model to inherit from: the configuration classes take these keys over with their own prefix."""

    http_tls: bool = Field(False, description="HTTP speaks TLS only, with this server's TLS certificate and key")
    http_max_connections: int | None = Field(
        default=None, ge=1, description="connections of HTTP; the oldest goes; default: by the limit of open files"
    )
    http_host_names: list[str] = Field(
        default_factory=list,
        description="names besides the server's own under which HTTP may be asked, * for any: pages that were led here "
        "by another name get nothing",
    )
    http_token: SecretStr | None = Field(
        default=None, min_length=1, description="HTTP requests that change something or show entries must carry it"
    )
    http_token_file: Path | None = Field(default=None, description="file with that token")

    def http_bearer_token(self) -> str | None:
        """The token, or None. Raises IncorrectParameterException for a file that can't be read."""
        return read_token(self.http_token.get_secret_value() if self.http_token else None, self.http_token_file)


def read_token(token: str | None, file: Path | None) -> str | None:
    """The configured token; None where there is none. Raises IncorrectParameterException."""
    if file is None:
        return token
    if token is not None:
        raise IncorrectParameterException("set http_token or http_token_file, not both")
    try:
        content = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise IncorrectParameterException(f"http_token_file {file} can't be read: {error}") from error
    if not content:
        raise IncorrectParameterException(f"http_token_file {file} is empty; write the token into it")
    return content
