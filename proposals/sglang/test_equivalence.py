"""A server that speculates with a draft model emits exactly what its model emits alone: 200 requests, no download.

Not run, for it needs a GPU: its names were read in the wheel of SGLang 0.5.23. Model and draft are written by
arithmetic, so each token is known.
"""

import subprocess
import tempfile
import unittest

from sglang.srt.utils import kill_process_tree
from sglang.test.ci.ci_register import register_cuda_ci
from sglang.test.test_utils import (
    DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH,
    DEFAULT_URL_FOR_TEST,
    CustomTestCase,
    popen_launch_server,
)

from eqcheck.kit import Equivalence

register_cuda_ci(est_time=120, suite="stage-b-test-large-1-gpu")


class StandaloneServer(CustomTestCase):
    base_url = DEFAULT_URL_FOR_TEST
    checkpoint, dtype = "full", "bfloat16"

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        target, draft = f"{cls.folder.name}/target", f"{cls.folder.name}/draft"
        written = ["--draft", draft, "--agreement", "0.75", "--dtype", cls.dtype]
        subprocess.run(["eqcheck", "checkpoint", "write", cls.checkpoint, target, *written], check=True)
        speculation = ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", draft]
        cls.process = popen_launch_server(
            target, cls.base_url, timeout=DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH, other_args=speculation
        )

    @classmethod
    def tearDownClass(cls):
        kill_process_tree(cls.process.pid)
        cls.folder.cleanup()


class TestStandaloneEquivalence(Equivalence, StandaloneServer):
    profile = "ci-2026.12"  # a frozen draw: a newer eqcheck finds nothing new until this name is raised
    est_time = 120
    test_sampling = None  # the profile has no sampled rows of servers


if __name__ == "__main__":
    unittest.main()
