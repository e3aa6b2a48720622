"""Which cards a process sees through CUDA_VISIBLE_DEVICES, by UUID and never by number.

Pure, and without imports of the rest: anything with the fields of `Card` will do.

CUDA numbers cards by CUDA_DEVICE_ORDER: PCI_BUS_ID, or by default FASTEST_FIRST, a heuristic
of the driver that NVML does not know. Equal cards keep their bus order under both; for unlike
ones a number then means nothing here, and asking is refused, with the two ways out.
"""

import re
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

PCI_ORDER: Final = "PCI_BUS_ID"
_NUMBER: Final = re.compile(r"\+?(\d{1,9})")


class Card(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def pci_bus_id(self) -> str: ...


C = TypeVar("C", bound=Card)


class OrderUnknown(Exception):
    """A number names a card, but which one CUDA means by it cannot be known."""


def visible_devices(value: str | None, order: str | None, devices: Sequence[C]) -> list[C]:
    """The cards of `devices` that CUDA shows, in CUDA's order.

    `value` and `order` are CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, None when unset;
    `devices` are the cards and MIG slices that NVML lists in the same container. As driver
    580 was seen to do: reading stops at the first entry that names no card or is not of the
    first one's form (number or UUID), a card given twice leaves none, a number ends at its
    last digit (`0x1` is 0), and the beginning of a UUID will do if it fits one card. Of MIG
    slices only the first named is shown (CUDA's documentation; not tried).
    """
    if value is None:
        return _in_cuda_order(order, devices) if len(devices) > 1 else list(devices)
    entries = [entry.strip() for entry in value.split(",")]
    chosen: list[C] = []
    for entry in entries:
        card = _named(entry, order, devices)
        if card is None or _is_uuid(entry) != _is_uuid(entries[0]):
            break
        if card in chosen:
            return []
        chosen.append(card)
    slices = [card for card in chosen if card.id.startswith("MIG-")]
    return slices[:1] or chosen


def _is_uuid(entry: str) -> bool:
    return entry.startswith(("GPU-", "MIG-"))


def _named(entry: str, order: str | None, devices: Sequence[C]) -> C | None:
    if _is_uuid(entry):
        matches = [card for card in devices if card.id.lower().startswith(entry.lower())]
        return matches[0] if len(matches) == 1 else None
    number = _NUMBER.match(entry)
    if number is None or int(number[1]) >= len(devices):
        return None
    return _in_cuda_order(order, devices)[int(number[1])]


def _in_cuda_order(order: str | None, devices: Sequence[C]) -> list[C]:
    if any(card.id.startswith("MIG-") for card in devices):
        raise OrderUnknown(
            "CUDA's numbers are not NVML's while MIG is on: set CUDA_VISIBLE_DEVICES=MIG-<uuid>"
        )
    if order != PCI_ORDER and len({card.name for card in devices}) > 1:
        names = ", ".join(sorted({card.name for card in devices}))
        raise OrderUnknown(
            f"CUDA sorts unlike cards ({names}) by speed, NVML by bus: set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES=GPU-<uuid>"
        )
    return sorted(devices, key=lambda card: card.pci_bus_id)
