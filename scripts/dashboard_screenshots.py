"""Pictures of the dashboard for the docs: a real mesh under load that imitates a machine with
eight GPUs and two sockets (from an NCCL topology file), its executors on the CPUs."""

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from PIL import Image
from tritonclient.utils import InferenceServerException

from sits_cli.testing_browser import browser, resize
from sits_cli.testing_mesh import plan, running, tensor, write_model

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "img"
LOADS = (
    ("gold", "ranker", 0.03), ("gold", "tagger", 0.02), ("silver", "ranker", 0.05),
    ("silver", "tagger", 0.03), ("bronze", "tagger", 0.015), ("bronze", "ranker", 0.03),
    ("bronze", "picky", 0.2),
)  # fmt: skip
"""Tenant, model and mean pause in seconds of each client."""
ELEMENTS = 20_000
"""Of a row: enough for the payload pool, so that something moves over the links."""
WINDOWS = (("light", 1440, False), ("dark", 1440, True), ("phone", 390, False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topology", help="NCCL topology XML of the machine to imitate")
    parser.add_argument("--seconds", type=float, default=100.0, help="load before a picture")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        take_all(Path(folder), given.topology, given.seconds)


def take_all(folder: Path, topology: str, seconds: float) -> None:
    models = folder / "models"
    write_model(models, "tagger", "sleep", sleep_ms=3, max_batch=16)
    write_model(models, "ranker", "sleep", sleep_ms=14, max_batch=32)
    write_model(models, "picky", "fail_on", value=666)
    on = {f"executor-{i}": {"SITS_EXECUTOR_DEVICE": f"cpu:{i % 2}"} for i in range(4)}
    source = {"topology": {"SITS_TOPOLOGY_SOURCE": topology}}
    chosen = plan(models, folder / "logs", 4, {"SITS_TRACE_RATIO": "0.05"}, on | source)
    stop = threading.Event()
    with running(chosen, "ranker") as mesh:
        clients = [
            threading.Thread(target=infer, args=(mesh.addresses.front, *load, stop))
            for load in LOADS
        ]
        for client in clients:
            client.start()
        try:
            for name, width_px, dark in WINDOWS:
                take(name, f"http://{mesh.addresses.admin}/", width_px, dark, seconds)
        finally:
            stop.set()
            for client in clients:
                client.join()


def infer(front: str, tenant: str, model: str, pause_s: float, stop: threading.Event) -> None:
    rng = random.Random(f"{tenant} {model}")  # noqa: S311 - a load, not a secret
    with triton.InferenceServerClient(front) as client:
        while not stop.wait(rng.expovariate(1 / pause_s)):
            value = 666 if model == "picky" and rng.random() < 0.2 else 1
            data = np.full((rng.randint(1, 4), ELEMENTS), value, np.float32)
            try:
                client.infer(model, [tensor(data)], headers={"sits-tenant": tenant})
            except InferenceServerException as error:
                if model != "picky":
                    raise SystemExit(str(error)) from None


def take(name: str, url: str, width_px: int, dark: bool, seconds: float) -> None:
    with browser(width_px, 900, dark=dark) as window:
        window.get(url)
        time.sleep(seconds)
        height_px = int(window.execute_script("return document.documentElement.scrollHeight"))
        resize(window, width_px, height_px)
        time.sleep(2)  # what it shows is laid out anew, and asked for once more
        picture = Image.open(BytesIO(window.get_screenshot_as_png())).convert("RGB")
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"dashboard-{name}.png"
    reduced(picture).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KB")


def reduced(picture: Image.Image) -> Image.Image:
    """With 256 colours, which takes a third of the bytes: the most frequent ones as they are,
    and such as come close to all the others."""
    data, half = picture.tobytes(), 128
    counted = Counter(data[i : i + 3] for i in range(0, len(data), 3))
    frequent = b"".join(colour for colour, _ in counted.most_common(half))
    close = picture.quantize(half, Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*frequent, *close[: 3 * half]])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main()
