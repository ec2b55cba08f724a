"""Manifests load, or one sentence says which file, object and field is wrong and what to write."""

import io
import json
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.api.api_objects import WRONG, Wrong, node, profile, task
from tests.unit.api.contradictions import Pair, pairs
from tests.unit.api.editing import REMOVED

from tierline_api.manifests.documents import MAX_DEPTH, DocumentError, read_documents
from tierline_api.manifests.files import MAX_FILE_BYTES, ManifestError, load_manifests

EXAMPLES = Path(__file__).parents[3] / "examples"


def written(path: Path, *objects: object) -> Path:
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    return path


@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.id for wrong in WRONG])
def test_a_mistake_is_one_sentence_with_file_object_field_and_fix(
    wrong: Wrong, tmp_path: Path
) -> None:
    path = written(tmp_path / "tasks.yaml", wrong.object)

    with pytest.raises(ManifestError) as caught:
        load_manifests([path])

    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert f": {wrong.field}: " in sentence
    assert wrong.says in sentence
    assert "\n" not in sentence
    assert len(sentence) < 400 + len(str(path))


def test_a_sentence_reads_as_a_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "t.yaml", task(spec__realtime__deadline="5s"))

    with pytest.raises(ManifestError) as caught:
        load_manifests([path])

    assert str(caught.value) == (
        f"{path}: MemTask robot/camera: spec.realtime.deadline: deadline 5s is longer than period"
        " 100ms; write a deadline of at most the period"
    )


_PERIODS = "write a duration from 1us to 24h, such as 50ms or 1m30s"
_BUDGETS = "write a quantity of bytes from 1 to 1Ei, such as 512Mi or 2Gi"


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        pytest.param("realtime__period", "25h", _PERIODS, id="longer than the field takes"),
        pytest.param("realtime__period", "1001h", _PERIODS, id="longer than any field takes"),
        pytest.param("realtime__period", "-5s", _PERIODS, id="a time before now"),
        pytest.param("memory__budget", "0", _BUDGETS, id="nothing where something is needed"),
        pytest.param("memory__budget", "-1", _BUDGETS, id="less than nothing"),
        pytest.param("memory__budget", "2Ei", _BUDGETS, id="more than any memory holds"),
    ],
)
def test_what_is_out_of_range_is_told_the_fields_own_bounds(
    field: str, value: str, advice: str, tmp_path: Path
) -> None:
    wrong = task(spec__memory__reserved=REMOVED, **{f"spec__{field}": value})
    path = written(tmp_path / "t.yaml", wrong)

    with pytest.raises(ManifestError) as caught:
        load_manifests([path])

    assert str(caught.value).endswith(
        f"spec.{field.replace('__', '.')}: '{value}' is out of range; {advice}"
    )


def test_files_folders_and_standard_input_load_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "node.json").write_text(json.dumps(node()))
    (tmp_path / "more" / "notes.txt").write_text("not read")
    written(tmp_path / "more" / "profile.yml", profile())
    first = written(tmp_path / "a.yaml", task(spec__profile="camera"), task(metadata__name="b"))
    text = io.TextIOWrapper(io.BytesIO(yaml.safe_dump(task(metadata__name="c")).encode()))
    monkeypatch.setattr("sys.stdin", text)

    loaded = load_manifests([first, str(tmp_path / "more"), "-"])

    assert [t.name for t in loaded.tasks] == ["camera", "b", "c"]
    assert [p.name for p in loaded.profiles] == ["camera"]
    assert [n.name for n in loaded.nodes] == ["node-1.example"]
    assert loaded.profile_of(loaded.tasks[0]) is loaded.profiles[0]
    assert loaded.profile_of(loaded.tasks[1]) is None


def test_a_task_that_names_no_profile_has_the_one_of_its_own_name(tmp_path: Path) -> None:
    loaded = load_manifests([written(tmp_path / "a.yaml", task(), profile())])

    assert loaded.tasks[0].spec.profile is None
    assert loaded.profile_of(loaded.tasks[0]) is loaded.profiles[0]


def test_what_kubectl_prints_is_read_back(tmp_path: Path) -> None:
    read = {
        **task()["metadata"],
        "uid": "1f",
        "generation": 3,
        "resourceVersion": "99",
        "creationTimestamp": "2026-11-21T10:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
    }
    listing = {"apiVersion": "v1", "kind": "List", "items": [task(metadata=read), node()]}

    loaded = load_manifests([written(tmp_path / "list.yaml", listing)])

    assert loaded.tasks[0].metadata.generation == 3
    assert loaded.nodes[0].status.devices[0].fast_bytes == 256 * 2**20


def test_the_same_name_twice_names_the_other_file(tmp_path: Path) -> None:
    first, second = written(tmp_path / "1.yaml", task()), written(tmp_path / "2.yaml", task())

    with pytest.raises(ManifestError, match=r"robot/camera: metadata.name: is already in "):
        load_manifests([first, second])

    written(second, task(metadata__namespace="other"))
    assert len(load_manifests([first, second]).tasks) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "is empty; write a MemTask", id="an empty file"),
        pytest.param("# only a comment\n---\n", "is empty", id="a file of comments"),
        pytest.param("kind: {MemTask", "did not find expected", id="no YAML"),
        pytest.param("a:\n\tb: 1", "indent with spaces", id="a tab"),
        pytest.param("a: b: c", "mapping values are not allowed", id="two colons"),
        pytest.param("just words", "is no object; write apiVersion", id="a text"),
        pytest.param("[1, 2]", "is no object", id="a list"),
        pytest.param("kind: MemTask", "apiVersion: is missing", id="no version"),
        pytest.param("apiVersion: tierline.io/v1alpha1", "kind: is missing", id="no kind"),
        pytest.param("a: 1\nb: 2\na: 3", "line 3: the key 'a' is given twice", id="a key twice"),
        pytest.param("{[1]: 2}", "a key is no text", id="a key that is a list"),
        pytest.param("? {a: b}\n: 2", "a key is no text", id="a key that is a mapping"),
        pytest.param("a: &x [*x]", "stands for itself", id="an alias within itself"),
        pytest.param("a: *x", "line 1: ", id="an alias of nothing"),
        pytest.param("a: !!python/object:os.system ls", "the tag", id="a tag that would run code"),
        pytest.param("a: .nan", "no number that JSON has", id="not a number"),
        pytest.param(f"a: {'9' * 5000}", "more than 40 digits", id="a number that never ends"),
        pytest.param("a: " + "[" * 5000, f"more than {MAX_DEPTH} deep", id="a deep list"),
        pytest.param("{a: " * 5000, f"more than {MAX_DEPTH} deep", id="a deep mapping"),
        pytest.param("a: \x00", "character that YAML does not allow", id="a NUL"),
        pytest.param("a: {<<: 5}", "<< merges mappings only", id="a merge of a number"),
    ],
)
def test_a_file_that_holds_no_manifest_says_why(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)

    with pytest.raises(ManifestError) as caught:
        load_manifests([path])

    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_that_multiply_cost_no_more_than_the_bound() -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 20):
        laughs += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"

    with pytest.raises(DocumentError, match="aliases expanded"):
        list(read_documents(laughs))


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    large, latin, empty = tmp_path / "large.yaml", tmp_path / "latin.yaml", tmp_path / "none"
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    latin.write_bytes("# für\n".encode("latin-1"))
    empty.mkdir()
    for path, says in (
        (tmp_path / "absent.yaml", "there is no such file"),
        (large, "is larger than 8 MiB"),
        (latin, "is not UTF-8"),
        (empty, "holds no .yaml"),
        (Path("/proc/self/mem"), "cannot be read"),
        (Path("a\0b"), "cannot be read"),
        (Path("/dev/zero"), "is larger than"),
    ):
        with pytest.raises(ManifestError, match=says) as caught:
            load_manifests([path])
        assert str(caught.value).isprintable()


def test_a_pipe_is_a_file(tmp_path: Path) -> None:
    """Shells write ``<(…)`` as the path of a pipe."""
    reader, writer = os.pipe()
    os.write(writer, yaml.safe_dump(task()).encode())
    os.close(writer)
    assert stat.S_ISFIFO(os.fstat(reader).st_mode)

    assert load_manifests([f"/dev/fd/{reader}"]).tasks[0].name == "camera"
    os.close(reader)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("2026-11-21", "2026-11-21", id="a date stays text"),
        pytest.param("12:30:00", "12:30:00", id="base sixty stays text"),
        pytest.param("0644", 420, id="a file mode is octal"),
        pytest.param("0x1F", 31, id="hexadecimal"),
        pytest.param("yes", True, id="yes is a truth value to kubectl"),
        pytest.param("'yes'", "yes", id="quotes make text"),
        pytest.param("!!str 5", "5", id="a tag makes text"),
        pytest.param("1e3", 1000.0, id="an exponent is a number"),
        pytest.param("1.5", 1.5, id="a fraction"),
        pytest.param("2Gi", "2Gi", id="a quantity is text"),
        pytest.param("~", None, id="null"),
        pytest.param("{1: a, yes: b}", {"1": "a", "yes": "b"}, id="keys are texts"),
        pytest.param(
            "{a: &x {k: 1, l: 2}, b: {<<: *x, k: 3}}",
            {"a": {"k": 1, "l": 2}, "b": {"k": 3, "l": 2}},
            id="merge keys",
        ),
    ],
)
def test_plain_values_mean_what_they_mean_to_kubectl(text: str, value: object) -> None:
    [document] = read_documents(f"v: {text}")
    assert document.value == {"v": value}


def test_documents_keep_their_place() -> None:
    documents = list(read_documents("---\n---\na: 1\n---\n# nothing\n---\nb: 2\n"))
    assert [(d.position, d.value) for d in documents] == [(2, {"a": 1}), (4, {"b": 2})]
    assert documents[1].line == 6


def test_the_examples_load_and_name_their_programs() -> None:
    perception = load_manifests([EXAMPLES / "1-quickstart" / "tasks.yaml"]).tasks
    infeasible = load_manifests([EXAMPLES / "2-refused" / "tasks.yaml"]).tasks

    assert [t.name for t in perception] == ["resnet", "vit", "bert"]
    assert len({t.domain for t in perception}) == 1
    for t in (*perception, *infeasible):
        assert t.spec.template is not None
        (program,) = t.spec.template.programs
        assert program.command == ("python", "-m", "tierline_examples.perception", t.name)
    slowest_s = {"resnet": 0.3, "vit": 0.48, "bert": 0.34}
    assert sum(slowest_s[t.name] / t.spec.realtime.period_s for t in perception) < 0.4
    assert sum(0.05 / t.spec.realtime.period_s for t in infeasible) > 1


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def paths_of(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(p for key, v in inner for p in paths_of(v, (*path, key)))]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([task, profile, node]), PLAIN)
def test_nothing_in_a_field_ends_in_a_traceback(
    data: st.DataObject, good: Callable[[], dict[str, Any]], value: object
) -> None:
    written_object = good()
    path = data.draw(st.sampled_from([p for p in paths_of(written_object) if p]))
    into: Any = written_object
    for part in path[:-1]:
        into = into[part]
    into[path[-1]] = value

    complaint = complaint_about(json.dumps(written_object))
    assert complaint.isprintable()
    assert len(complaint) < 600


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:-[]{},&*!<>|'\"?%@ \n\t#~0é"), max_size=60))
def test_nothing_in_a_file_ends_in_a_traceback(text: str) -> None:
    assert complaint_about(text).isprintable()


def complaint_about(text: str) -> str:
    """Return what is said of a file that holds `text`, nothing if it is good."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        try:
            load_manifests([file.name])
        except ManifestError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"command": ["python", "a\0b"]}, "command[1]"),
        ({"command": [""]}, "command"),
        ({"command": ["p"], "args": ["\0"]}, "args[0]"),
        ({"command": ["p"], "env": [{"name": "A", "value": "\0"}]}, "env[0].value"),
        ({"command": ["p"], "env": [{"name": "A\0"}]}, "env[0].name"),
        ({"command": ["p"], "env": [{"name": "A=B"}]}, "env[0].name"),
        ({"command": ["p"], "workingDir": "/\0"}, "workingDir"),
    ],
)
def test_what_no_process_can_be_given_names_its_field(
    tmp_path: Path, part: dict[str, Any], field: str
) -> None:
    template = {"spec": {"containers": [{"name": "c", **part}]}}
    path = written(tmp_path / "t.yaml", task(spec__template=template))
    with pytest.raises(ManifestError) as caught:
        load_manifests([path])
    assert f": spec.template.spec.containers[0].{field}: " in str(caught.value)


PAIRS = tuple(pairs({"MemTask": task(), "MemProfile": profile(), "MemNode": node()}))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_equal_numbers_do_not_contradict_each_other(pair: Pair, tmp_path: Path) -> None:
    loaded = load_manifests([written(tmp_path / "t.yaml", pair.equal)])
    assert len([*loaded.tasks, *loaded.profiles, *loaded.nodes]) == 1


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_only_the_second_number_makes_a_pair_wrong(pair: Pair) -> None:
    wrong, equal = flat(pair.wrong), flat(pair.equal)
    assert len({path for path in wrong if wrong[path] != equal.get(path)}) == 1


def flat(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = dict(enumerate(value)).items()
    else:
        return {path: value}
    return {p: v for key, one in items for p, v in flat(one, f"{path}.{key}").items()}


def test_a_missing_field_is_one_line_however_long_its_description(tmp_path: Path) -> None:
    path = written(tmp_path / "t.yaml", task(spec__swap__objects=[{"tier": "dram"}]))
    with pytest.raises(ManifestError) as caught:
        load_manifests([path])
    assert ": spec.swap.objects[0].name: is missing; write name (layers of" in str(caught.value)
    assert "\n" not in str(caught.value)
