"""The CRDs: what is checked in is what the models say, and it is structural."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tierline_api import crdgen
from tierline_api.schema.fields import LABEL_PATTERN, SUBDOMAIN_PATTERN
from tierline_api.schema.quantities import DURATION_PATTERN

CRDS = Path(__file__).parents[3] / "crds"
GENERATED = {name: yaml.safe_load(text) for name, text in crdgen.files()}
SPECS = [crd["spec"] for crd in GENERATED.values()]


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema of a CRD with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from schemas(field, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from schemas(schema["additionalProperties"], f"{path}.*")


ALL = [
    (spec["names"]["kind"], path, schema)
    for spec in SPECS
    for path, schema in schemas(spec["versions"][0]["schema"]["openAPIV3Schema"])
]
TASK = {path: schema for kind, path, schema in ALL if kind == "MemTask"}


@pytest.mark.parametrize(
    "folder", [CRDS, CRDS.parent / "charts/tierline/files/crds"], ids=["crds", "chart"]
)
def test_what_is_checked_in_is_what_the_models_say(folder: Path) -> None:
    assert crdgen.main(["--check", str(folder)]) == 0


def test_a_stale_file_is_named_with_the_command_that_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert crdgen.main(["--write", str(tmp_path)]) == 0
    assert crdgen.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "tierline.io_memtasks.yaml").write_text("stale")

    assert crdgen.main(["--check", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "tierline.io_memtasks.yaml differ" in said
    assert f"--write {tmp_path}" in said


def test_every_schema_is_structural() -> None:
    allowed = {"type", "description", "default", "format", "enum", "pattern", "required"} | {
        *("properties", "items", "minimum", "maximum", "minLength", "maxLength"),
        *("minItems", "maxItems", "anyOf"),
    }
    for kind, path, schema in ALL:
        extra = {key for key in schema if not key.startswith("x-kubernetes-")} - allowed
        assert not extra, f"{kind}{path}: {extra}"
        if schema.get("x-kubernetes-int-or-string"):
            assert "type" not in schema, path
            assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
        else:
            assert schema["type"] in {"object", "array", "string", "integer", "boolean"}, path
            assert "anyOf" not in schema, path
        assert schema.get("description") or path.endswith(("metadata", "[]")), path


def test_everything_that_cel_costs_is_bounded() -> None:
    for kind, path, schema in ALL:
        free = path in {".apiVersion", ".kind"} or "enum" in schema
        if schema.get("type") == "string" and not free and schema.get("format") != "date-time":
            assert "maxLength" in schema, (kind, path)
        if schema.get("type") == "array":
            assert "maxItems" in schema, (kind, path)


def test_bounds_are_exact_in_the_floating_point_of_the_api_server() -> None:
    for kind, path, schema in ALL:
        for key in ("minimum", "maximum"):
            bound = schema.get(key, 0)
            assert int(float(bound)) == bound < 2**63, (kind, path)


def test_every_default_is_of_its_fields_type() -> None:
    """The API server takes no other CRD."""
    types = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
    for kind, path, schema in ALL:
        if "default" in schema and "type" in schema:
            assert isinstance(schema["default"], types[schema["type"]]), (kind, path)


def test_units_never_leave_python() -> None:
    for kind, path, _ in ALL:
        assert not re.search(r"_|(Time|period|deadline|overhead)S\b", path), kind


def test_kubectl_finds_the_kinds_by_short_names() -> None:
    assert [
        (s["names"]["kind"], s["names"]["shortNames"], s["names"]["categories"], s["scope"])
        for s in SPECS
    ] == [
        ("MemTask", ["mt"], ["tierline"], "Namespaced"),
        ("MemProfile", ["mp"], ["tierline"], "Namespaced"),
        ("MemNode", ["mn"], ["tierline"], "Cluster"),
        ("MemQuota", ["mq"], ["tierline"], "Namespaced"),
    ]
    scaled = {s["names"]["kind"] for s in SPECS if "scale" in s["versions"][0]["subresources"]}
    assert scaled == {"MemTask"}
    for spec in SPECS:
        assert spec["versions"][0]["subresources"]["status"] == {}


def test_every_column_shows_a_field_that_exists() -> None:
    for spec in SPECS:
        paths = {p for p, _ in schemas(spec["versions"][0]["schema"]["openAPIV3Schema"])}
        for column in spec["versions"][0]["additionalPrinterColumns"]:
            path = re.sub(r"\[[^]]+\]", "[]", column["jsonPath"])
            assert path in paths or path == ".metadata.creationTimestamp", column


def test_the_template_is_kept_whole() -> None:
    template = TASK[".spec.template"]
    assert template["x-kubernetes-preserve-unknown-fields"] is True
    for path, schema in TASK.items():
        if path.startswith(".spec.template") and schema["type"] == "object":
            # Of Kubernetes' own objects nothing is dropped, and nothing is written into them.
            assert schema["x-kubernetes-preserve-unknown-fields"] is True, path
        assert not path.startswith(".spec.template.") or "default" not in schema, path
    containers = TASK[".spec.template.spec.containers"]
    assert (containers["type"], containers["minItems"]) == ("array", 1)


def test_cel_and_python_share_one_pattern_of_durations() -> None:
    [rule] = TASK[".spec.realtime.period"]["x-kubernetes-validations"]
    assert DURATION_PATTERN in rule["rule"]
    assert rule["message"] == "write a duration from 1us to 24h, such as 50ms or 1m30s"


def test_no_yaml_anchor_hides_a_list() -> None:
    for _, text in crdgen.files():
        assert not re.search(r": [&*]id", text)


def test_no_field_names_what_no_object_is_called() -> None:
    # Tierline's kinds that are named by a field live in namespaces; their names are DNS labels.
    assert [path for _, path, one in ALL if one.get("pattern") == SUBDOMAIN_PATTERN] == []
    profile = TASK[".spec.profile"]
    assert (profile["pattern"], profile["maxLength"]) == (LABEL_PATTERN, 63)
