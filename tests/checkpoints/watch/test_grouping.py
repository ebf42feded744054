from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.checkpoints.layout import FileStat
from prefect_bt.checkpoints.watch.grouping import TopLevelFolder, group_by_checkpoint

FOLDERS = ("run", "run/checkpoint-10", "run/checkpoint-10/global_step10", "run/exp-step3/final")
NAMES = (
    *("config.json", "model.safetensors", "optimizer.pt", "epoch=1-step=5.ckpt", "model_3.pt"),
    *("best.pt", "notes.txt", "a.pt.tmp", "model.safetensors.index.json"),
)
PATHS = st.builds("{}/{}".format, st.sampled_from(FOLDERS), st.sampled_from(NAMES))
STATS = st.one_of(st.none(), st.builds(FileStat, st.integers(0, 9), st.integers(0, 9)))


@settings(deadline=None, max_examples=300)
@given(st.lists(st.dictionaries(PATHS, STATS, min_size=1, max_size=4), max_size=12))
def test_an_update_groups_as_a_scan_does(batches):
    folder, files = TopLevelFolder(), dict[str, FileStat]()
    for changes in batches:
        folder.update(changes)
        files |= {path: stat for path, stat in changes.items() if stat is not None}
        for path in [path for path, stat in changes.items() if stat is None]:
            files.pop(path, None)
        assert folder.checkpoints == group_by_checkpoint(files)
