"""Settings of the token for changes over HTTP, the same for gateway and bookie."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr

from bookgate.gateway.http.access import read_token


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
