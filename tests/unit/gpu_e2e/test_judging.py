"""What the run on a GPU machine makes of what it has read, and what its archive holds."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import cast

import pytest
from tests.gpu_e2e import carried
from tests.gpu_e2e.carried import Carried
from tests.gpu_e2e.judging import Phase, gaps, hand_over, judge, objections
from tests.gpu_e2e.machine import programs_image
from tests.gpu_e2e.release import Release
from tests.gpu_e2e.scraping import Scraper
from tests.gpu_e2e.tasks import Job, jobs_in


def test_a_counter_grows_over_the_restart_of_its_process() -> None:
    scraper = Scraper(cast(Release, None), "node")
    misses = 'misses_total{domain="models",task="giant",job="tierline-agent"}'
    scraper.samples[misses] = [(1.0, 2.0), (2.0, 5.0), (3.0, 1.0), (4.0, 1.0)]
    scraper.samples[misses.replace("giant", "other")] = [(2.0, 100.0)]
    assert scraper.increase("misses_total", "giant", 2.0, 2.5) == 3
    assert scraper.increase("misses_total", "giant", 3.0, 4.0) == 1
    assert scraper.increase("misses_total", "giant", 0.0, 9.0) == 6


def test_jobs_are_read_from_a_log_with_times() -> None:
    first, second = "0123456789abcdef" * 2, "f" * 32
    log = f"""2026-01-02T03:04:05.123456789Z {{"model": "vit-giant"}}
2026-01-02T03:04:06Z job 0 {first} 12.500
2026-01-02T03:04:06.5Z job 1 {second} 2600.125 late
2026-01-02T03:04:07.0Z something else
"""
    jobs = jobs_in(log)
    assert [(job.index, job.digest, job.response_s, job.late) for job in jobs] == [
        (0, first, 0.0125, False),
        (1, second, 2.600125, True),
    ]
    assert jobs[1].ended_s - jobs[0].ended_s == 0.5


def test_a_job_belongs_to_the_phase_in_which_it_ended() -> None:
    jobs = [Job(float(at), at, "right", 0.1 * at, late=at == 3) for at in range(6)]
    line = judge("giant", Phase("load", 2.0, 4.0), jobs, 0.0, "right")
    assert (line.jobs, line.late, line.wrong) == (2, 1, 0)
    assert line.worst_s == pytest.approx(0.3)
    assert judge("giant", Phase("load", 2.0, 4.0), jobs, 0.0, "other").wrong == 2


def test_what_a_phase_does_not_allow_is_said() -> None:
    strict, killed = Phase("load", 0.0, 9.0), Phase("killed", 0.0, 9.0, may_be_late=True)
    good = Job(1.0, 0, "right", 0.1, late=False)
    late = replace(good, late=True)

    def said(phase: Phase, job: Job, misses: float = 0.0) -> list[str]:
        return objections(phase, judge("giant", phase, [job], misses, "right"))

    assert said(strict, good) == said(killed, good) == said(killed, late, 1.0) == []
    assert said(strict, late) == ["giant, load: 1 jobs late, 0 misses"]
    assert said(strict, good, 1.0) == ["giant, load: 0 jobs late, 1 misses"]
    assert said(killed, replace(good, digest="wrong")) == ["giant, killed: 1 outputs differ"]
    assert said(killed, replace(good, ended_s=9.0)) == ["giant, killed: no job ended"]


def test_releases_without_a_job_are_counted() -> None:
    jobs = [Job(float(index), index, "", 0.1, late=False) for index in (4, 5, 8)]
    assert gaps(jobs) == 2


def test_a_hand_over_is_read_from_both_agents_logs() -> None:
    before = """2026-01-02 03:04:05,900 INFO tierline_agent.app: ready in /run/tierline
2026-01-02 03:05:00,100 INFO tierline_agent.app: stopping; clients keep what they have mapped
"""
    handover = "tierline_agent.lifecycle.handover"
    after = f"""2026-01-02 03:04:58,000 INFO {handover}: standing by until it ended
2026-01-02 03:05:00,400 INFO {handover}: the agent that served has ended
2026-01-02 03:05:00,500 INFO {handover}: no process of an agent before is left
2026-01-02 03:05:00,800 INFO tierline_agent.app: opened the devices in 0.10 s, the tiers in 0.20 s
2026-01-02 03:05:01,000 INFO tierline_agent.app: ready in /run/tierline
2026-01-02 03:05:01,100 INFO tierline_agent.sessions.session: giant (process 9) is back
"""
    assert hand_over(before, after) == {"gone": 0.3, "alone": 0.4, "opened": 0.7, "ready": 0.9}
    assert hand_over("", after) == {}
    assert hand_over(before, "Traceback") == {}


def test_the_plugin_for_pods_is_found_in_the_image_that_has_it(tmp_path: Path) -> None:
    def layer(*names: str) -> bytes:
        written = BytesIO()
        with tarfile.open(fileobj=written, mode="w") as tar:
            for name in names:
                entry = tarfile.TarInfo(name)
                entry.size = 1 << 17
                tar.addfile(entry, BytesIO(bytes(entry.size)))
        return written.getvalue()

    blobs = {
        "index.json": json.dumps({"manifests": []}).encode(),
        "blobs/sha256/1": layer("opt/tierline/bin/python", "opt/tierline/lib/python3.11/os.py"),
        "blobs/sha256/2": layer("opt/tierline/0.1.0/python/tierline/job.py", "etc/passwd"),
    }
    unpacked = Carried(tmp_path)
    with tarfile.open(unpacked.images, "w") as archive:
        for name, content in blobs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))
    python = unpacked.plugin(tmp_path / "into")
    assert [str(path.relative_to(python)) for path in python.rglob("*.py")] == ["tierline/job.py"]
    assert not (tmp_path / "into" / "etc").exists()


def test_an_archive_is_made_again_only_when_what_it_holds_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried, "_SQUEEZE", "cat")
    monkeypatch.setattr(carried, "PIECE", "4")
    content, made = tmp_path / "content", tmp_path / "made"
    made.mkdir()

    def packed() -> dict[str, tuple[bytes, int]]:
        carried.pack_one(made, "programs", f"cat '{content}'")
        pieces = sorted(made.glob("programs.tar.xz.*"))
        return {one.name: (one.read_bytes(), one.stat().st_ino) for one in pieces}

    content.write_text("sixteen letters.")
    first = packed()
    assert [written for written, _ in first.values()] == [b"sixt", b"een ", b"lett", b"ers."]
    assert packed() == first
    content.write_text("fewer.")
    assert [written for written, _ in packed().values()] == [b"fewe", b"r."]


def test_the_programs_image_holds_nothing_but_the_program() -> None:
    image = programs_image()
    assert set(image.files) == {
        "/programs/tests/gpu/models.py",
        "/programs/tests/gpu_e2e/program.py",
    }
    assert all(path.is_file() for path in image.files.values())
    assert image.user == "65532:65532"
