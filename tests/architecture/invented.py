"""Invented source that breaks a rule or just keeps it: the rule's name, a module, what it says."""

EMPTY = dict.fromkeys(
    ["", "errors", "records", "gang", "objects", "objects.bucket", "objects.disk", "flows"], ""
)

BROKEN = [
    ("rooms", "attic", "", "attic: has no room"),
    ("rooms", "attic.boxes", "", "attic.boxes: has no room"),
    ("arrows", "errors", "from prefect_bt.records import Job", "errors (level 0) imports records"),
    ("arrows", "errors", "import prefect_bt.gang", "imports gang"),
    ("arrows", "errors", "from prefect_bt import records", "imports records"),
    ("arrows", "errors", "from . import records", "imports records"),
    ("arrows", "definitions.job", "from ..gang import Gang", "imports gang"),
    ("arrows", "records", "def f():\n    from prefect_bt.gang import Gang", "imports gang"),
    ("arrows", "gang", "from prefect_bt.objects.bucket import B", "imports the adapter"),
    ("arrows", "substrates.local_process", "import prefect_bt.objects.disk", "the adapter"),
    (
        "places",
        "objects.disk",
        "from prefect_bt.objects.bucket import B",
        "never import each other",
    ),
    ("places", "substrates.docker_engine", "import prefect_bt.substrates.local_run", "each other"),
    ("foreign", "gang", "import prefect", "gang imports prefect: only"),
    ("foreign", "node.main", "from prefect.states import Completed", "imports prefect"),
    ("foreign", "workspace", "import docker.errors", "imports docker"),
    ("foreign", "checkpoints.taking", "import boto3", "imports boto3"),
    ("foreign", "errors", "import pydantic", "standard library only"),
    ("foreign", "cli.app", "from flows.train import train", "say prefect_bt.flows"),
    ("names", "objects.utils", "", "'utils' is no subject"),
    ("names", "common.x", "", "'common' is no subject"),
    ("sizes", "gang", "x = 1\n" * 401, "401 lines"),
    ("broad_excepts", "gang", "try: f()\nexcept: pass", "gang: (line 2)"),
    (
        "broad_excepts",
        "gang",
        "class G:\n def f(self):\n  try: g()\n  except (OSError, Exception) as e: log(e)",
        "gang:G.f (line 4)",
    ),
    ("broad_excepts", "gang", "def f():\n with contextlib.suppress(Exception): g()", "gang:f"),
    ("environ", "gang", "import os\nx = os.environ['A']", "gang (line 2)"),
    ("environ", "gang", "import os\nx = os.getenv('A')", "gang (line 2)"),
    ("environ", "gang", "from os import environ", "gang (line 1)"),
]
"""And words of the sentence that the rule must say."""

KEPT = [
    ("rooms", "flows.train", ""),
    ("rooms", "substrates.docker_engine", ""),
    (
        "arrows",
        "gang",
        "from prefect_bt.errors import E\nfrom prefect_bt.substrates.protocol import S",
    ),
    ("arrows", "flows.train", "from prefect_bt.objects.bucket import B"),
    ("arrows", "jobs", "from prefect_bt.objects import open_store"),
    ("places", "substrates.docker_engine", "import prefect_bt.substrates.docker_images"),
    ("places", "substrates.docker_engine", "import prefect_bt.substrates.protocol"),
    ("foreign", "flows.train", "from prefect import flow"),
    ("foreign", "substrates.docker_engine", "import docker"),
    ("foreign", "errors", "import json"),
    ("sizes", "gang", "x = 1\n" * 400),
    ("broad_excepts", "gang", "try: f()\nexcept BaseException:\n    undo()\n    raise"),
    ("broad_excepts", "gang", "try: f()\nexcept OSError: pass"),
    ("environ", "settings", "import os\nos.environ"),
    ("environ", "node.main", "import os\nos.environ"),
    ("environ", "substrates.docker_engine", "import os\nos.environ"),
]
