"""Who may call what, and for which tenant: API keys, the admin token, tenant names."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sits_core.errors import InvalidArgument, PermissionDenied, Unauthenticated
from sits_core.rpc import AUTHORIZATION, token_matches
from sits_core.settings import SettingsError
from sits_preprocess.transport.call import Metadata

TENANT_HEADER: Final = "sits-tenant"
EXPLAIN_HEADER: Final = "sits-explain"
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_BEARER = "Bearer "


class Access:
    """Decides from a call's metadata. `keys` maps SHA-256 of an API key to its tenant.

    Keys are looked up by digest: how long a look-up takes tells nothing about a key.
    With keys configured, inference and everything said about models needs one of them,
    or the admin token. Control calls need the admin token; without one configured they
    work only when `loopback`.
    """

    def __init__(
        self,
        keys: Mapping[bytes, str],
        admin_token: str | None,
        *,
        loopback: bool,
        default_tenant: str,
    ) -> None:
        self._keys, self._admin_token, self._loopback = keys, admin_token, loopback
        self.default_tenant = default_tenant

    def require_client(self, metadata: Metadata) -> str:
        """Tenant that the caller's key belongs to; empty when no keys are configured."""
        if not self._keys:
            return ""
        given = metadata.get(AUTHORIZATION, "")
        tenant = self._keys.get(_digest(given.removeprefix(_BEARER)))
        if tenant is None and not self._is_admin(metadata):
            raise Unauthenticated("this server needs a valid API key: 'authorization: Bearer KEY'")
        return tenant or ""

    def require_admin(self, metadata: Metadata) -> None:
        if self._admin_token is None:
            if not self._loopback:
                raise PermissionDenied("control calls are off: the server has no admin token")
        elif not self._is_admin(metadata):
            raise Unauthenticated("this call needs the admin token: 'authorization: Bearer TOKEN'")

    def tenant(self, key_tenant: str, named: str) -> str:
        """The tenant to account a request to: the key's, the one it names, or the default."""
        if not named:
            return key_tenant or self.default_tenant
        tenant = named.lower()
        if not _TENANT.fullmatch(tenant):
            raise InvalidArgument(
                f"invalid tenant {named[:80]!r}: expected up to 64 letters, digits, '.', '_' or '-'"
            )
        if key_tenant and tenant != key_tenant:
            raise PermissionDenied(f"this API key may not be used for tenant '{tenant}'")
        return tenant

    def _is_admin(self, metadata: Metadata) -> bool:
        return self._admin_token is not None and token_matches(
            metadata.items(), (self._admin_token,)
        )


def read_api_keys(path: str | None) -> dict[bytes, str]:
    """Digest of each key to its tenant. Raises `SettingsError` for a file that is not so."""
    if path is None:
        return {}
    wrong = SettingsError(
        f"SITS_PREPROCESS_API_KEYS_FILE={path}: expected a JSON object of API key to tenant name"
    )
    try:
        keys = json.loads(Path(path).read_text())
    except (OSError, ValueError):
        raise wrong from None
    if not isinstance(keys, dict) or not keys or not all(map(_is_tenant, keys.values())):
        raise wrong
    return {_digest(key): tenant for key, tenant in keys.items()}


def _is_tenant(value: object) -> bool:
    return isinstance(value, str) and _TENANT.fullmatch(value) is not None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
