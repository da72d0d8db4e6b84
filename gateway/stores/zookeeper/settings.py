"""Settings of connections to ZooKeeper beyond the URI: TLS, authentication, access to created nodes, request sizes.

Does not need kazoo: a gateway that uses another store knows these keys too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field, SecretStr, field_validator

from bookgate.gateway.stores.settings import StoreSettings
from bookgate.runtime.settings import Renamed


class ZooKeeperSettings(StoreSettings):
    """Every key, with its meaning. Defaults: plain TCP, no authentication, nodes open to everyone."""

    RENAMED: ClassVar[Mapping[str, Renamed]] = {"zookeeper_tls_hostname": Renamed("zookeeper_tls_verify_host_name")}

    zookeeper_tls: bool = Field(default=False, description="speak TLS with ZooKeeper (its secureClientPort)")
    zookeeper_tls_ca: str | None = Field(
        default=None, description="PEM file of the authorities that may vouch for ZooKeeper; the system's without it"
    )
    zookeeper_tls_cert: str | None = Field(default=None, description="PEM file of the certificate shown to ZooKeeper")
    zookeeper_tls_key: str | None = Field(default=None, description="PEM file of that certificate's key")
    zookeeper_tls_verify_host_name: bool = Field(
        default=True, description="ZooKeeper's certificate must name the host of the metadata URI"
    )
    zookeeper_auth: SecretStr | None = Field(default=None, description="digest authentication, as user:password")
    zookeeper_acl: Literal["open", "creator"] = Field(
        default="open", description="who may touch nodes made here: everyone, or only who authenticates the same"
    )
    zookeeper_max_request_bytes: int = Field(
        default=0xFFFFF,
        ge=512 * 1024,
        description="larger requests are refused, not sent; the servers' jute.maxbuffer, beyond which they disconnect",
    )

    @field_validator("zookeeper_auth")
    @classmethod
    def _names_a_user(cls, value: SecretStr | None) -> SecretStr | None:
        user, colon, password = (value.get_secret_value() if value else "u:p").partition(":")
        if not (user and colon and password):
            raise ValueError("must be of the form user:password")
        return value

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if (self.zookeeper_tls_cert is None) != (self.zookeeper_tls_key is None):
            yield "zookeeper_tls_cert and zookeeper_tls_key go together; set both or none"
        if not self.zookeeper_tls and (self.zookeeper_tls_ca or self.zookeeper_tls_cert):
            yield "certificates for ZooKeeper are set, but zookeeper_tls is not; set it to true"
        if self.zookeeper_acl == "creator" and self.zookeeper_auth is None and self.zookeeper_tls_cert is None:
            yield "zookeeper_acl is creator: that needs zookeeper_auth (or a certificate) to be someone"


DEFAULTS = ZooKeeperSettings()
