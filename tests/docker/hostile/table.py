"""All attacks, by name."""

from __future__ import annotations

from .attack import Attack
from .caches import CACHES
from .files import FILES
from .formats import FORMATS
from .kernel import KERNEL
from .links import LINKS
from .pipes import PIPES
from .processes import PROCESSES

SUBJECTS: dict[str, tuple[Attack, ...]] = {
    "Links": LINKS,
    "Files": FILES,
    "Contents": FORMATS,
    "Processes and memory": PROCESSES,
    "The container's walls": KERNEL,
    "Pipes and logs": PIPES,
    "Caches and workspaces": CACHES,
}
ATTACKS = {attack.name: attack for subject in SUBJECTS.values() for attack in subject}
assert len(ATTACKS) == sum(map(len, SUBJECTS.values())), "names are unique"
