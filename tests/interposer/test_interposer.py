"""Builds the interposer plain and sanitized, and preloads it into programs on the simulated driver.

The scenarios and what they expect stand in the C files next to this one; here is how programs
reach the driver (each way that real ones use), which interposers are preloaded, and what a process
without CUDA may notice of it.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native_builds import (
    FLAVOURS,
    ROOT,
    WITHOUT_THREADS,
    build,
    cuda_include,
    run,
    simulated_driver,
    simulated_machine,
    tool,
)

HERE = Path(__file__).parent
SOURCE = ROOT / "nodeagent" / "native" / "interposer"
LIBC = ROOT / "nodeagent" / "native" / "src" / "libc"
AROUND = re.compile(r"^(?:(?:TRANSFER|HELD|AROUND)\(\w+, |CHANGED\()(\w+)[,)]", re.MULTILINE)
"""Functions of the C library that ours stand around."""
RUNTIMES = {"plain": [], "address": ["libasan.so", "libubsan.so"], "thread": ["libtsan.so"]}
WAYS = ["dlsym", "proc_address_v1", "proc_address_v2", "per_thread", "linked"]


def scenarios(program: str) -> list[str]:
    """The names in a test program's table."""
    text = (HERE / f"{program}.c").read_text(encoding="utf-8")
    return re.findall(r'\{"(\w+)", \1\}', text)


SCENARIOS = [("memory_test", s) for s in scenarios("memory_test") if s != "refused"]
SCENARIOS += [("launches_test", s) for s in scenarios("launches_test")]
SCENARIOS += [("spill_test", s) for s in scenarios("spill_test")]
SETTINGS = {
    name: {"TIERLINE_BUDGET": "8Mi"}
    for name in ("budget", "budget_of_two_threads", "virtual_memory")
}
SETTINGS["bad_budget"] = {"TIERLINE_BUDGET": "8 MiB"}
SETTINGS |= {
    name: {"TIERLINE_BUDGET": "8Mi", "TIERLINE_ON_EXCEEDED": "Spill"}
    for name in scenarios("spill_test")
}
SETTINGS["spill_peers"]["SIMCUDA_DEVICES"] = "2"
SETTINGS["bad_on_exceeded"]["TIERLINE_ON_EXCEEDED"] = "spill"
# What a scenario's program says on stderr; the others say nothing.
SAID = dict.fromkeys(scenarios("spill_test"), "exceed the budget of 8388608 bytes")
SAID |= {
    "bad_budget": "TIERLINE_BUDGET='8 MiB'",
    "bad_on_exceeded": "TIERLINE_ON_EXCEEDED='spill'",
    "tickets": "cuIpcGetMemHandle refused: the 3145728 bytes",
}


def library(flavour: str) -> str:
    return str(build(flavour) / "libtierline.so")


def preload(flavour: str, *libraries: str) -> str:
    """LD_PRELOAD's value: a sanitizer's runtime must stand before everything."""
    runtimes = [
        run(tool("cc"), f"-print-file-name={name}").stdout.strip() for name in RUNTIMES[flavour]
    ]
    return ":".join([*runtimes, *libraries])


@pytest.fixture
def machine() -> Iterator[dict[str, str]]:
    """The environment of a simulated machine of its own."""
    with simulated_machine() as folder:
        yield {
            "SIMCUDA_STATE": str(folder),
            "SIMCUDA_LATE": "1",
            "SIMCUDA_MEMORY": "64Mi",
            "ASAN_OPTIONS": "detect_leaks=1",
        }


def start(
    flavour: str, program: str, scenario: str, way: str, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    folder = build(flavour) / "interposer-tests"
    access = {"ACCESS": "proc_address_v2" if way == "per_thread" else way}
    if way == "per_thread":
        access["ACCESS_PER_THREAD"] = "1"
    access |= SETTINGS.get(scenario, {})
    return run(
        str(folder / (f"{program}_linked" if way == "linked" else program)),
        scenario,
        env={"LD_LIBRARY_PATH": str(folder / "simcuda"), **access, **env},
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(("program", "scenario"), SCENARIOS, ids=[s for _, s in SCENARIOS])
def test_scenario(flavour: str, program: str, scenario: str, machine: dict[str, str]) -> None:
    ways = WAYS if flavour == "plain" else ["proc_address_v2", "linked"]
    for way in ways:
        done = start(
            flavour,
            program,
            scenario,
            way,
            {**machine, "LD_PRELOAD": preload(flavour, library(flavour))},
        )
        if scenario in SAID:
            assert SAID[scenario] in done.stderr
            assert len(re.findall("^tierline: ", done.stderr, re.MULTILINE)) <= 2
        else:
            assert "tierline" not in done.stderr


CANNOT_CONNECT = "could not connect to the agent at TIERLINE_SOCKET="


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "settings", "scenario", "said"),
    [
        ("yes", {}, "works", None),
        ("yes", {"TIERLINE_REQUIRED": "1"}, "works", None),
        ("no", {}, "works", "; this program runs without Tierline"),
        ("no", {"TIERLINE_REQUIRED": "1"}, "refused", "; CUDA stays off"),
        ("none", {}, "works", None),
        ("none", {"TIERLINE_REQUIRED": "1"}, "refused", "TIERLINE_SOCKET names no agent"),
        ("none", {"TIERLINE_REQUIRED": "1", "TIERLINE_OBSERVE": "x"}, "works", None),
    ],
    ids=[
        "there",
        "there, required",
        "gone",
        "gone, required",
        "unset",
        "unset, required",
        "observed",
    ],
)
def test_the_agents_absence(
    answers: str,
    settings: dict[str, str],
    scenario: str,
    said: str | None,
    machine: dict[str, str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(path))
        if answers == "yes":
            agent.listen()
        named = {} if answers == "none" else {"TIERLINE_SOCKET": str(path)}
        env = {**machine, **named, **settings, "LD_PRELOAD": preload("address", library("address"))}
        done = start("address", "memory_test", scenario, "dlsym", env)
    if said is None:
        assert done.stderr == ""
    else:
        assert said in done.stderr
        assert (CANNOT_CONNECT in done.stderr) == (answers == "no")
        assert done.stderr.count("tierline:") == (2 if scenario == "refused" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("way", ["dlsym", "linked"])
def test_nvml_shows_the_budget(flavour: str, way: str, machine: dict[str, str]) -> None:
    preloaded = {**machine, "LD_PRELOAD": preload(flavour, library(flavour))}
    start(flavour, "nvml_test", "limited", way, {**preloaded, "TIERLINE_BUDGET": "8Mi"})
    start(flavour, "nvml_test", "unlimited", way, preloaded)


@pytest.mark.slow
def test_python_sees_the_budget(machine: dict[str, str]) -> None:
    """As every Python monitor: nvidia-ml-py finds NVML by ctypes."""
    asked = (
        "import pynvml as n; n.nvmlInit(); d = n.nvmlDeviceGetHandleByIndex(0)\n"
        "one, two = n.nvmlDeviceGetMemoryInfo(d), n.nvmlDeviceGetMemoryInfo(d, n.nvmlMemory_v2)\n"
        "print(one.total, one.used, two.total, two.reserved, two.used)"
    )
    done = run(
        *(sys.executable, "-c", asked),
        env={
            **machine,
            "LD_LIBRARY_PATH": str(simulated_driver("plain")),
            "LD_PRELOAD": library("plain"),
            "TIERLINE_BUDGET": "8Mi",
        },
    )
    assert done.stdout.split() == [str(8 << 20), "0", str(8 << 20), "0", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ["none", "twice", "in front", "after"])
def test_interposers_side_by_side(
    way: str, order: str, machine: dict[str, str], tmp_path: Path
) -> None:
    own = library("plain")
    other = str(build("plain") / "interposer-tests" / "libother_interposer.so")
    second = tmp_path / "libtierline-again.so"
    shutil.copy(own, second)
    preloaded = {
        "none": [],
        "twice": [own, str(second)],
        "in front": [other, own],
        "after": [own, other],
    }[order]
    done = start(
        "plain", "memory_test", "works", way, {**machine, "LD_PRELOAD": ":".join(preloaded)}
    )
    if other in preloaded:
        # A program that asks cuGetProcAddress for everything passes this one's hook by, as ever.
        passed_by = way.startswith("proc_address") or way == "per_thread"
        expected = 0 if passed_by else 1
        assert f"other interposer: {expected} allocations" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_program_without_cuda_notices_nothing(flavour: str) -> None:
    program = str(build(flavour) / "interposer-tests" / "bystander_test")
    without = run(program, env={"LD_PRELOAD": preload(flavour)}).stdout
    loaded = run(program, env={"LD_PRELOAD": preload(flavour, library(flavour))}).stdout
    assert loaded == without


@pytest.mark.slow
def test_a_shell_runs() -> None:
    run("/bin/sh", "-c", "true", env={"LD_PRELOAD": library("plain")})


@pytest.mark.slow
def test_a_musl_program_runs(tmp_path: Path) -> None:
    source = tmp_path / "musl.c"
    source.write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\n"
        'int main(void) { return dlsym(RTLD_DEFAULT, "puts") == (void *)puts\n'
        '    && dlsym(RTLD_DEFAULT, "cuInit") == NULL ? 0 : 1; }\n'
    )
    program = tmp_path / "musl"
    run(tool("musl-gcc"), "-o", str(program), str(source))
    run(str(program))
    run(str(program), env={"LD_PRELOAD": library("plain")})


@pytest.mark.slow
@pytest.mark.parametrize("flavour", WITHOUT_THREADS)
def test_the_carving_allocator(flavour: str) -> None:
    run(str(build(flavour) / "interposer-tests" / "carve_test"))


@pytest.mark.slow
def test_the_binary_interface_is_nvidias() -> None:
    run(str(build("plain") / "interposer-tests" / "abi_test"))


@pytest.mark.slow
def test_the_library_exports_hooks_and_its_api_only() -> None:
    listing = run(tool("nm"), "-D", "--defined-only", library("plain")).stdout
    names = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    table = (SOURCE / "src" / "driver" / "hooks.h").read_text(encoding="utf-8")
    hooks = set(re.findall(r"^(?:int|struct \w+) ((?:cu|nvml)\w+)\(", table, re.MULTILINE))
    transfers = {name for file in LIBC.glob("*.c") for name in AROUND.findall(file.read_text())}
    other = names - hooks - transfers
    assert hooks | transfers <= names
    assert len(transfers) > 30
    assert {n for n in other if not n.startswith("tierline_")} == {
        "dlsym",
        "sigaction",
        "signal",
        "GLIBC_2.2.5",
        "GLIBC_2.34",
    }
    public = ROOT / "nodeagent" / "native" / "include" / "tierline"
    declared = "".join((public / f"{n}.h").read_text() for n in ("interposer", "tierline"))
    assert {n for n in other if n.startswith("tierline_")} <= set(
        re.findall(r"tierline_\w+", declared)
    )
    needed = run(tool("readelf"), "-d", library("plain")).stdout
    assert re.findall(r"NEEDED.*\[(.*?)\]", needed) == ["libc.so.6"]


def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SOURCE / "generate_hooks.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_generated_files_are_those_of_the_table() -> None:
    done = generate("--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("header", "declared"),
    [
        ("cuda.h", "cuMemAllocTwice(CUdeviceptr *p)"),
        ("cuda.h", "cuCtxGetLaunchCount(int *n)"),
        ("cuda.h", "cuBrandNew(void)"),
        ("nvml.h", "nvmlDeviceGetMemoryInfo_v3(nvmlDevice_t device, nvmlMemory_v3_t *memory)"),
        ("cufile.h", "cuFileBufRegister_v2(const void *base, size_t length)"),
    ],
    ids=["a new allocation", "a launch after a star", "a new family", "NVML", "cuFile"],
)
def test_a_newer_header_is_refused(header: str, declared: str, tmp_path: Path) -> None:
    for name in ("cuda.h", "cudaTypedefs.h", "nvml.h", "cufile.h"):
        shutil.copy(cuda_include() / name, tmp_path / name)
    with (tmp_path / header).open("a", encoding="utf-8") as file:
        file.write(f"CUresult CUDAAPI {declared};\n")
    done = generate("--check", "--include", str(tmp_path))
    assert done.returncode == 1
    assert f"{declared.split('(', maxsplit=1)[0]}, which hooks.toml does not mention" in done.stderr


def test_a_name_that_the_header_lacks_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "hooks.toml"
    text = (SOURCE / "hooks.toml").read_text(encoding="utf-8")
    table.write_text(text.replace('"cuMemAllocPitch", "cuMemFree"', '"cuMemFree", "cuMemGone"'))
    done = generate("--check", "--table", str(table))
    assert done.returncode == 1
    assert "cuda.h has no cuMemGone" in done.stderr
    assert "cuMemAllocPitch, which hooks.toml does not mention" in done.stderr
