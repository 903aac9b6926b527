"""Every example in Python of the book runs, by itself and among two workers."""

import importlib.util
import os
import re
import tempfile
import unittest

import jobs
import models  # noqa: F401  imports PyTorch here once, and not in every worker

BOOK = os.path.join(jobs.HERE, "..", "..", "..", "docs", "src")
PAGES = ["getting-started.md", os.path.join("guide", "python.md")]


def _runs(block, folder):
    os.chdir(folder)
    exec(compile(block, "the page", "exec"), {"__name__": "__main__"})


class Pages(unittest.TestCase):
    def test_examples_run(self):
        blocks = []
        for page in PAGES:
            with open(os.path.join(BOOK, page), encoding="utf-8") as file:
                found = re.findall(r"^```python\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
            self.assertTrue(found, page)
            blocks += found
        self.assertGreater(len(blocks), 6)
        for block in blocks:
            needed = sorted(set(re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)))
            missing = [name for name in needed if importlib.util.find_spec(name) is None]
            for workers in (1, 2):
                with self.subTest(block=block.strip().splitlines()[0], workers=workers):
                    if missing:
                        self.skipTest(f"SKIPPED: {', '.join(missing)} cannot be imported here")
                    with tempfile.TemporaryDirectory() as folder:
                        self.assertEqual(jobs.run("test_pages:_runs", workers, block, folder), [None] * workers, block)


if __name__ == "__main__":
    unittest.main()
