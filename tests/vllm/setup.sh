#!/usr/bin/env bash
# Make an environment that runs vLLM's Python code without a GPU, and unpack a vLLM for it.
# usage: setup.sh VERSION TRITON VENV SRC [TORCH]
#   the environment VENV gets torch, Triton and vLLM's requirements; SRC/VERSION gets the Python files of the wheel,
#   which is what VLLM_ROOT must name. Both are left alone if they are there already.
set -euo pipefail
VERSION=${1:?VERSION of vLLM} TRITON=${2:?version of TRITON} VENV=${3:?folder VENV} SRC=${4:?folder SRC} TORCH=${5:-2.13.0}
HERE=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python3.11}
command -v "$PYTHON" >/dev/null || PYTHON=python3

if [ ! -e "$VENV/.vllm-ready" ]; then
  "$PYTHON" -m venv "$VENV"
  pip() { "$VENV/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
  pip install "torch==$TORCH" # first and alone, so that nothing pulls another
  pip install -r "$HERE/requirements.txt"
  # Without its dependencies, which would name another torch; its operators are stood in for by harness.py.
  pip install --no-deps torchvision
  pip install --no-deps "triton==$TRITON"
  # The plugin is found by its entry point, so jitreplay is installed as a user's is, but editable.
  pip install --no-deps --editable "$HERE/../.."
  touch "$VENV/.vllm-ready"
fi

if [ ! -e "$SRC/$VERSION/vllm/__init__.py" ]; then
  wheels=$(mktemp -d)
  platforms=$(printf -- '--platform manylinux_%s_x86_64 ' 2_28 2_31 2_34 2_35)
  # shellcheck disable=SC2086
  "$VENV/bin/python" -m pip --disable-pip-version-check --quiet download --no-deps --only-binary=:all: $platforms \
    --dest "$wheels" "vllm==$VERSION"
  mkdir -p "$SRC/$VERSION.part"
  "$VENV/bin/python" - "$wheels"/vllm-*.whl "$SRC/$VERSION.part" <<'EOF'
import sys, zipfile

wheel, folder = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    kept = [n for n in archive.namelist() if n.endswith((".py", ".json")) or ".dist-info/" in n]
    archive.extractall(folder, kept)
EOF
  mv "$SRC/$VERSION.part" "$SRC/$VERSION"
  rm -rf "$wheels"
fi
echo "VLLM_ROOT=$SRC/$VERSION $VENV/bin/python"
