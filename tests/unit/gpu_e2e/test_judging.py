"""What the run on a GPU machine makes of what it has read, and what its archive holds."""

from __future__ import annotations

import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import cast

from tests.gpu_e2e.carried import Carried
from tests.gpu_e2e.machine import programs_image
from tests.gpu_e2e.release import Release
from tests.gpu_e2e.scraping import Scraper
from tests.gpu_e2e.tasks import jobs_in


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
2026-01-02T03:04:06Z job 0 {first}
2026-01-02T03:04:06.5Z job 1 {second} late
2026-01-02T03:04:07.0Z something else
"""
    jobs = jobs_in(log)
    assert [(job.index, job.digest, job.late) for job in jobs] == [
        (0, first, False),
        (1, second, True),
    ]
    assert jobs[1].ended_s - jobs[0].ended_s == 0.5


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
    carried = Carried(tmp_path)
    with tarfile.open(carried.images, "w") as archive:
        for name, content in blobs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))
    python = carried.plugin(tmp_path / "into")
    assert [str(path.relative_to(python)) for path in python.rglob("*.py")] == ["tierline/job.py"]
    assert not (tmp_path / "into" / "etc").exists()


def test_the_programs_image_holds_nothing_but_the_program() -> None:
    image = programs_image()
    assert set(image.files) == {
        "/programs/tests/gpu/models.py",
        "/programs/tests/gpu_e2e/program.py",
    }
    assert all(path.is_file() for path in image.files.values())
    assert image.user == "65532:65532"
