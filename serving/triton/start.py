"""Starts the Triton server in the wheel nvidia-pytriton, without Docker, with the arguments given.

    python -m venv triton && triton/bin/pip install nvidia-pytriton tensorflow tensorflow-text
    triton/bin/python serving/triton/start.py --model-repository=models

Use a separate environment, because Triton's Python backend crashes on a text with numpy 2.
"""

import importlib.util
import os
import pathlib
import sys


def main() -> None:
    found = importlib.util.find_spec("pytriton")
    if not found:
        sys.exit(f"start.py: {sys.prefix} has no Triton; pip install nvidia-pytriton")
    package = pathlib.Path(found.origin).parent
    backends = package / "tritonserver/backends"
    stub = backends / "python/triton_python_backend_stub"
    version = "{}.{}".format(*sys.version_info)
    for link, to in (
        (stub, package / "tritonserver/python_backend_stubs" / version / stub.name),
        (backends / "bert_tf2", pathlib.Path(__file__).resolve().parent),
    ):
        link.unlink(missing_ok=True)
        link.symlink_to(to)
    # The backend must run the Python of this environment, and finds Python only by PATH.
    os.environ["PATH"] = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
    os.environ["LD_LIBRARY_PATH"] = f"{package.parent}/nvidia_pytriton.libs{os.pathsep}{sys.base_prefix}/lib"
    command = [f"{package}/tritonserver/bin/tritonserver", f"--backend-directory={backends}", *sys.argv[1:]]
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
