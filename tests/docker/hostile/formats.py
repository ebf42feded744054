"""Attacks by contents: files that a reader of checkpoints might believe, unpack or run."""

from .attack import Attack

FORMATS = (
    Attack(
        "safetensors-headers",
        python="""
        def tensors(name, header, size=None, data=b"0" * 64):
            size = len(header) if size is None else size
            spoiled(name, "model.safetensors", struct.pack("<Q", size) + header + data)
        for n, size in enumerate((2**63, 2**64 - 1, 2**31, 10**8, 0, 1)):
            tensors(f"size-{n}", b"{}", size)
        tensors("brackets", b"[" * 1_000_000)
        tensors("objects", b'{"a":' * 200_000)
        for n, ends in enumerate(([0, 2**63], [-1, 5], [5, 0], [0], None, ["0", "1"], [0, 1e300], [[], {}])):
            tensors(f"ends-{n}", json.dumps({"t": {"dtype": "F32", "shape": [4], "data_offsets": ends}}).encode())
        tensors("shape", json.dumps({"t": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 64]}}).encode())
        tensors("digits", b'{"t": {"dtype": "F32", "shape": [' + b"9" * 100_000 + b'], "data_offsets": [0, 64]}}')
        tensors("infinite", b'{"t": {"dtype": "F32", "shape": [Infinity], "data_offsets": [NaN, 1e999]}}')
        tensors("escapes", json.dumps({"\\x1b]0;x\\x07": {"dtype": "\\x1b[2J", "shape": [], "data_offsets": [0, 64]}}).encode())
        tensors("metadata", json.dumps({"__metadata__": {"a": "x" * 10**6, "b": ["not text"]}}).encode())
        tensors("latin", b'{"\\xff": {}}')
        """,
        refuses=("size-0", "size-1", "size-2"),
    ),
    Attack(
        "json-bombs",
        python="""
        bombs = [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
            b"9" * 1_000_000, b"1e999999999", b"-Infinity", b"NaN", b"null", b"[]", b'""', b"\\xef\\xbb\\xbf{}",
            b"\\xff\\xfe{\\0}\\0", b'{"a": 1, "a": 2}', b'"' + b"\\\\u0000" * 10_000 + b'"', b"\\0" * 1000, b""]
        for n, bomb in enumerate(bombs):
            for name in ("config.json", "trainer_state.json", "model.safetensors.index.json", "adapter_config.json"):
                (checkpoint(f"bomb-{n}") / name).write_bytes(bomb)
            (checkpoint(f"checkpoint-{n}") / "trainer_state.json").write_bytes(bomb)
        """,
    ),
    Attack(
        "index-of-elsewhere",
        python="""
        maps = [{"w": f"{HOST}/secret"}, {"w": "../honest/a.json"}, {"w": "../" * 20 + f"{HOST}/secret"},
            {str(n): f"shard-{n}" for n in range(100_000)}, {"w": None}, {"w": ["x"]}, {"w": {"x": 1}},
            [], None, "x", {"w": "\\0"}, {"w": ""}, {"w": "."}, {"w": "\\x1b]52;c;aGk=\\x07"}]
        for n, shards in enumerate(maps):
            text = json.dumps({"metadata": {"total_size": -1}, "weight_map": shards})
            spoiled(f"index-{n}", "model.safetensors.index.json", text.encode())
        """,
        refuses=("index-0", "index-1", "index-2", "index-3"),
    ),
    Attack(
        "zip-bombs",
        python="""
        import zipfile, io
        def archived(name, data):
            for kind in ("pt", "npz", "zip", "keras", "tar", "distcp"):
                (checkpoint(name) / f"x.{kind}").write_bytes(data)
        end = lambda entries, size, at, note=b"": struct.pack("<4s4H2LH", b"PK\\5\\6", 0, 0, entries, entries, size, at, len(note)) + note
        archived("none", b"PK\\3\\4" + b"x" * 100)
        archived("elsewhere", b"PK\\3\\4" + b"x" * 100 + end(65535, 2**32 - 1, 2**32 - 1))
        archived("negative", b"PK\\3\\4" + end(1, 10**6, 0))
        far = struct.pack("<4sLQL", b"PK\\6\\7", 0, 2**63, 1)
        archived("far", b"PK\\3\\4" + far + end(65535, 2**32 - 1, 2**32 - 1))
        archived("ends", b"PK\\5\\6" * 50_000)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("zeros", b"\\0" * 30_000_000)
            made.writestr(f"../../../../../../../../..{HOST}/{MARK}", "x")
            made.writestr(f"/tmp/{MARK}", "x")
        archived("bomb", packed.getvalue())
        """,
        keeps=("honest", "bomb"),
    ),
    Attack(
        "pickles",
        python="""
        import pickle
        class Runs:
            def __reduce__(self):
                return os.system, (f"touch /tmp/{MARK} /{MARK}",)
        one = checkpoint("pickled")
        for name in ("x.pt", "x.pkl", "optimizer.bin", "training_args.bin", "pytorch_model.bin", "x.npy", "rng_state.pth"):
            (one / name).write_bytes(pickle.dumps(Runs()))
        code = f"import os; os.system('touch /tmp/{MARK} /{MARK}')"
        for folder in (one, C, W, P, S):
            for name in ("config.py", "sitecustomize.py", "conftest.py", "setup.py", "modeling_x.py", "__init__.py"):
                (folder / name).write_text(code)
            (folder / "x.pth").write_text("import os; " + code)
        """,
    ),
    Attack(
        "git-folders",
        """
        for d in $C/repository $W $P $S; do
          mkdir -p $d/.git/hooks $d/.git/objects $d/.git/refs; echo ref: refs/heads/x > $d/.git/HEAD
          printf '[core]\\n\\tfsmonitor = touch /tmp/%s\\n\\tsshCommand = touch /%s\\n' $MARK $MARK > $d/.git/config
          printf '#!/bin/sh\\ntouch /%s\\n' $MARK > $d/.git/hooks/post-index-change
          chmod +x $d/.git/hooks/*
        done
        """,
    ),
    Attack(
        "names-of-models",
        python="""
        names = [f"{HOST}", "../../x", "\\x1b]52;c;aGk=\\x07", "[link=x]y[/link]", {"a": 1}, ["x"], None, -1, 10**400, True]
        for n, name in enumerate(names):
            one = checkpoint(f"checkpoint-{n + 1}")
            adapter = {"base_model_name_or_path": name, "peft_type": name, "r": name, "auto_mapping": name}
            (one / "adapter_config.json").write_text(json.dumps(adapter))
            (one / "adapter_model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
            state = {"global_step": name, "best_model_checkpoint": name, "log_history": [{"loss": name}] * 100}
            (one / "trainer_state.json").write_text(json.dumps(state))
            model = {"architectures": name, "model_type": name, "auto_map": {"AutoModel": name}, "torch_dtype": name}
            (one / "config.json").write_text(json.dumps(model))
        """,
    ),
)
