"""Says what this machine lacks to build MonoMoE, with the remedy. Runs on any Python 3."""

import os
import shutil
import subprocess
import sys
import tempfile

PROGRAM = "#include <compare>\n#include <span>\n#if __cplusplus < 202002L\n#error\n#endif\nint main() {}\n"


def compiler_problem():
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler.split()[0]):
        return "C++ compiler: one that knows C++20 wanted, no '%s' found" % compiler
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "t.cpp")
        with open(source, "w") as file:
            file.write(PROGRAM)
        command = [*compiler.split(), "-std=c++20", "-fsyntax-only", source]
        if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            return "C++ compiler: C++20 wanted, '%s' refuses -std=c++20" % compiler
    return None


def main():
    problems = []
    if sys.version_info < (3, 10):
        version = "%d.%d" % sys.version_info[:2]
        problems.append(
            "python3: 3.10 or later wanted, %s found; pass another: make PYTHON=python3.12 ..." % version
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        problems.append("python3: the venv module wanted, not found; Debian: apt-get install python3-venv")
    problem = compiler_problem()
    if problem:
        problems.append(problem + "; g++ 12 works; Debian: apt-get install g++; or set CXX")
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
