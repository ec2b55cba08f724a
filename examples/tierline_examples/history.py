"""A history of pictures on a GPU, periodically: `python -m tierline_examples.history`.

A program without layers: it allocates by the CUDA driver's own functions, and no model is in it.
The GPU keeps the last pictures; each job reads the oldest back, and puts a new one in its place.
"""

from __future__ import annotations

import argparse
from typing import Any

from cuda.bindings import driver

import tierline

PICTURE_BYTES = 4 << 20
PERIOD_S = 0.1
"""By itself; the manifest says the same."""


def main() -> None:
    """Keep the pictures; end with a sentence if one comes back with other bytes."""
    options = argparse.ArgumentParser(description=main.__doc__)
    options.add_argument("--pictures", type=int, default=24, help="how many the GPU keeps")
    options.add_argument("--jobs", type=int, help="how many to run; until the task ends if absent")
    given = options.parse_args()
    begin()
    history = int(ok(driver.cuMemAlloc(given.pictures * PICTURE_BYTES)))
    kept: dict[int, int] = {}
    for number, _ in enumerate(tierline.periodic(PERIOD_S, jobs=given.jobs)):
        place = number % given.pictures
        with tierline.job():
            oldest = exchanged(history + place * PICTURE_BYTES, number % 251)
        if place in kept and oldest != bytes([kept[place]]) * PICTURE_BYTES:
            raise SystemExit(f"picture {number - given.pictures} is not what it was")
        kept[place] = number % 251


def begin() -> None:
    """Use the first GPU that this process sees."""
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))))


def exchanged(address: int, value: int) -> bytes:
    """The picture at a device address, in whose place a new one then is, all of one value."""
    picture = bytearray(PICTURE_BYTES)
    ok(driver.cuMemcpyDtoH(picture, address, PICTURE_BYTES))
    ok(driver.cuMemsetD8(address, value, PICTURE_BYTES))
    ok(driver.cuCtxSynchronize())
    return bytes(picture)


def ok(answer: tuple[Any, ...]) -> Any:
    """The value of a call of the driver's that succeeded."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"CUDA answered {answer[0].name}")
    return answer[1] if len(answer) == 2 else None


if __name__ == "__main__":
    main()
