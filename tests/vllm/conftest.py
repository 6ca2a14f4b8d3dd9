"""These tests need vLLM, which has an environment of its own: make test-vllm. Elsewhere they are not there,
and tests/conformance/test_lm.py says so in a skip of its own."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_engine.py", "test_orphans.py"]
