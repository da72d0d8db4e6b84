"""The keys that this store brings to the gateway's configuration."""

from __future__ import annotations

from pydantic import Field, SecretStr

from bookgate.gateway.stores.settings import StoreSettings


class TinySettings(StoreSettings):
    """Every key, with its meaning."""

    tiny_password: SecretStr | None = Field(default=None, description="what the cluster was made with")
    tiny_look_seconds: float = Field(default=0.02, gt=0, description="between looks for changes of other processes")
