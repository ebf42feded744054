"""Print facts of the interpreter that runs this file as JSON (environment.BaseFacts).

The base interpreter of a project's environment runs it. It may be of an older release than ours.
"""

import glob
import importlib.util
import json
import os
import sys
import sysconfig


def includes_system() -> bool:
    """Return whether the packages of the system can be imported."""
    if sys.prefix == sys.base_prefix:
        return True
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg")) as config:  # noqa: PTH118, PTH123
            text = config.read()
    except OSError:
        return False
    return "include-system-site-packages=true" in text.replace(" ", "").lower()


def find_pip_wheel() -> str:
    """Return the path of the wheel of pip; "" if pip can be imported, or if there is no wheel."""
    if importlib.util.find_spec("pip") or not importlib.util.find_spec("ensurepip"):
        return ""
    import ensurepip

    own = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")  # noqa: PTH118, PTH120
    for folder in (own, getattr(ensurepip, "_WHEEL_PKG_DIR", None)):
        for wheel in glob.glob(os.path.join(folder or own, "pip-*.whl")):  # noqa: PTH118, PTH207
            return wheel
    return ""


if __name__ == "__main__":
    inside = sys.prefix != sys.base_prefix
    facts = {
        "binary": os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
        "version": ".".join(map(str, sys.version_info[:3])),
        "library": os.path.basename(sysconfig.get_path("stdlib")),  # noqa: PTH119
        "packages": [sysconfig.get_path(name) for name in ("purelib", "platlib") if inside],
        "system": includes_system(),
        "scripts": sysconfig.get_path("scripts"),
        "pip_wheel": find_pip_wheel(),
    }
    sys.stdout.write(json.dumps(facts))
