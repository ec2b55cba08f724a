"""How much slower than measured everything may be before a plan does not hold; one definition.

A plan is made with compute times multiplied, and bandwidths divided, by the margin of its kind of
device. So a link that does less than 1 / margin of what was measured is too slow for plans, and one
that does more is not: the agent reports a drifted link by the same figure.

On `cpu` the agent's copies slow the layers and the layers slow the copies, but both are measured by
themselves; run together, neither lost more than a fifth on the machines tried. On a GPU copies
have engines of their own.
"""

from __future__ import annotations

from typing import Final

from tierline_api.devices.device import DeviceKind

MARGINS: Final = {DeviceKind.CPU: 1.3, DeviceKind.CUDA: 1.1}
"""What is used where nobody chooses another one, by kind of device."""
