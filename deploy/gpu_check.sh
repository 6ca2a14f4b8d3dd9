#!/usr/bin/env bash
# Spark-TTS's two networks on a GPU, checked against the CPU and timed; prints one table, in at most --budget
# minutes (8) and the part that runs then. Needs Python 3.11 with PyTorch, transformers and pydantic, and no network.
#   deploy/gpu_check.sh [--budget MIN] [--json F]       on the GPU
#   deploy/gpu_check.sh --device cpu --tiny             whether all of it runs, anywhere
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
missing=$("$PYTHON" - <<'EOF'
from importlib.util import find_spec
names = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "yaml", "pydantic")
print(" ".join(name for name in names if find_spec(name) is None))
EOF
)
if [ -n "$missing" ]; then
    echo "gpu_check: $PYTHON lacks: $missing (pip install --target DIR elsewhere, and PYTHONPATH=DIR here, will do)" >&2
    exit 2
fi
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
PYTHONPATH=".${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m tts_plugin.bench.gpu "$@"
