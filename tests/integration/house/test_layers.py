"""An import that points up, or out of what is pure, breaks the contracts of pyproject.toml."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

CONFIGURATION = Path(__file__).resolve().parents[3] / "pyproject.toml"
KINDS = {"layers": LayersContract, "forbidden": ForbiddenContract}
AGENT = "the agent's rooms point one way"
OPERATOR = "the operator's rooms point one way"
COMMANDS = "the command line's rooms point one way"
PLUGIN = "the plugin's rooms point one way"
PLANNER = "the planner's rooms point one way"
PURE = "policy is pure: no I/O, no clock"


@pytest.fixture(scope="module")
def contracts() -> dict[str, Any]:
    """The contracts that `make verify` holds, by name."""
    read = read_configuration(str(CONFIGURATION))
    return {
        one["name"]: KINDS[one["type"]](one["name"], read["session_options"], one)
        for one in read["contracts_options"]
        if one["type"] in KINDS
    }


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    """The imports of all packages, as they are."""
    packages = read_configuration(str(CONFIGURATION))["session_options"]["root_packages"]
    return grimp.build_graph(*packages, include_external_packages=True, cache_dir=None)


@pytest.mark.parametrize(
    ("importer", "imported", "contract"),
    [
        ("tierline_agent.telemetry.health", "tierline_agent.sessions.session", AGENT),
        ("tierline_agent.policy.leases", "tierline_agent.scheduling.leases", AGENT),
        ("tierline_agent.attic", "tierline_agent.errors", AGENT),
        ("tierline_operator.cluster.state", "tierline_operator.controller.loop", OPERATOR),
        ("tierline_operator.planning.jobs.curve", "tierline_operator.planning.homes", PLANNER),
        ("tierline_cli.reporting.live", "tierline_cli.local.run", COMMANDS),
        ("tierline_torch.tensors.weights", "tierline_torch.learning.course", PLUGIN),
        ("tierline_agent.policy.leases", "time", PURE),
        ("tierline_operator.admission.demand", "os", PURE),
        ("tierline_api.layout", "tierline_client.client", "the node side points one way"),
    ],
    ids=[
        "up",
        "from policy up",
        "from no room",
        "operator",
        "planner",
        "CLI",
        "plugin",
        "a clock",
        "I/O",
        "between packages",
    ],
)
def test_a_planted_import_breaks_its_contract(
    contracts: dict[str, Any],
    imports: grimp.ImportGraph,
    importer: str,
    imported: str,
    contract: str,
) -> None:
    planted = deepcopy(imports)
    for module in (importer, imported):
        if module not in planted.modules:
            planted.add_module(module, is_squashed=module in {"time", "os"})
    planted.add_import(importer=importer, imported=imported)
    assert contracts[contract].check(deepcopy(imports), verbose=False).kept
    assert not contracts[contract].check(planted, verbose=False).kept
