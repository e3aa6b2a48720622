"""Who the tenants are: JSON text into `Tenants`, with errors that name the field.

    {"tenants": {"search": {"tier": "gold", "rate_per_s": 500, "burst": 50, "max_waiting": 200}},
     "default": {"tier": "bronze", "max_waiting": 100}}

Every field but `tier` may be left out. Quotas count rows. Tenants `gold`, `silver` and `bronze` are
there without being named; names that the file does not know share the flow of `default`.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Final

from sits_scheduling.quotas import Quota
from sits_scheduling.tenants import OTHER, Tenant, Tenants, Tier

TIERS: Final[Mapping[str, Tier]] = {tier.name.lower(): tier for tier in Tier}
STANDARD: Final = tuple(Tenant(name, tier) for name, tier in TIERS.items())
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FIELDS: Final = ("tier", "rate_per_s", "burst", "max_waiting")
_SECTIONS: Final = ("tenants", "default")


class TenantsError(ValueError):
    """Names the field, what was expected and what came."""


def standard_tenants() -> Tenants:
    """Those of a mesh without a file."""
    return Tenants(STANDARD)


def parse_tenants(text: str) -> Tenants:
    """Raises `TenantsError`."""
    try:
        data: object = json.loads(text)
    except ValueError as error:
        raise TenantsError(f"expected JSON: {error}") from None
    root = _object(data, "the file", _SECTIONS)
    given = _object(root.get("tenants", {}), "tenants")
    known = {tenant.name: tenant for tenant in STANDARD}
    known |= {name: _tenant(_name(name), entry, f"tenants.{name}") for name, entry in given.items()}
    default = _tenant(OTHER.name, root.get("default", {}), "default", OTHER.tier)
    return Tenants(known.values(), default)


def _tenant(name: str, entry: object, where: str, tier: Tier | None = None) -> Tenant:
    fields = _object(entry, where, _FIELDS)
    quota = Quota(
        _number(fields, "rate_per_s", where, math.inf),
        _number(fields, "burst", where, 0.0),
        _number(fields, "max_waiting", where, math.inf),
    )
    return Tenant(name, _tier(fields.get("tier"), f"{where}.tier", tier), quota)


def _tier(value: object, where: str, default: Tier | None) -> Tier:
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or value not in TIERS:
        raise TenantsError(f"{where}: expected one of {', '.join(TIERS)}, got {_shown(value)}")
    return TIERS[value]


def _number(fields: Mapping[str, object], name: str, where: str, default: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise TenantsError(f"{where}.{name}: expected a number from 0, got {_shown(value)}")
    if name == "rate_per_s" and value == 0:
        raise TenantsError(f"{where}.{name}: expected more than 0; max_waiting 0 refuses all")
    return float(value)


def _name(name: str) -> str:
    if not _NAME.fullmatch(name) or name == OTHER.name:
        raise TenantsError(
            f"tenants: expected names of up to 64 small letters, digits, '.', '_' or '-', and not "
            f"'{OTHER.name}', got {_shown(name)}"
        )
    return name


def _object(value: object, where: str, fields: tuple[str, ...] = ()) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TenantsError(f"{where}: expected an object, got {_shown(value)}")
    unknown = next((key for key in value if fields and key not in fields), None)
    if unknown is not None:
        names = ", ".join(fields)
        raise TenantsError(f"{where}: expected the fields {names}, got {_shown(unknown)}")
    return value


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:80]
