"""Files: written as a whole or not at all, by any number of processes, killed or not, and read without trust."""

import importlib.util
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading

import drjit.nn as drnn
import numpy as np
import pytest
from support.machines import environment

import coopnet as cn
from coopnet import io
from coopnet.io import amounts, checkpoint, files

st = pytest.importorskip("safetensors.numpy")
safetensors = pytest.importorskip("safetensors")

posix = pytest.mark.skipif(os.name != "posix", reason="locks, FIFOs and signals of POSIX")


def small(seed=0, width=8):
    return cn.NeuralField(cn.Triangular(2, in_features=2), cn.MLP(out_features=3, width=width, depth=1)), seed


def build(backend, seed=0, width=8):
    field, seed = small(seed, width)
    return field.build(backend, seed=seed)


def text(content):
    return lambda temporary: temporary.write_text(content)


def names(folder):
    return sorted(os.listdir(folder))


@pytest.fixture
def file(tmp_path, backend):
    """A checkpoint in a folder of its own."""
    path = tmp_path / "field.safetensors"
    io.save(path, build(backend))
    return path


def start(code, *arguments):
    """A Python process with this coopnet, whose output comes line by line."""
    command = [sys.executable, "-u", "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# ---- one writer ---------------------------------------------------------


def test_atomic_write(tmp_path):
    path = tmp_path / "a.txt"

    def write(content):
        def inner(temporary):
            assert temporary.parent == path.parent and temporary.suffix == path.suffix and temporary.exists()
            temporary.write_text(content)

        return inner

    io.atomic_write(path, write("one"))
    assert path.read_text() == "one"
    path.chmod(0o640)
    io.atomic_write(str(path), write("two"))
    assert path.read_text() == "two" and path.stat().st_mode & 0o777 == 0o640
    for error in (OSError("disk full"), KeyboardInterrupt(), RuntimeError("x")):

        def fail(temporary, error=error):
            temporary.write_text("thr")
            raise error

        with pytest.raises(type(error)):
            io.atomic_write(path, fail)
        assert path.read_text() == "two" and names(tmp_path) == ["a.txt"]


@posix
def test_all_is_on_the_disk_in_order(tmp_path, monkeypatch):
    """First the contents, then the name, which is the directory's; no file stays open."""
    path, done = tmp_path / "a.txt", []
    fsync, replace, real_open, close = os.fsync, os.replace, os.open, os.close
    opened = []
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(real_open(*a, **k)) or opened[-1])
    monkeypatch.setattr(os, "close", lambda d: (opened.remove(d), close(d)))
    monkeypatch.setattr(os, "fsync", lambda d: (done.append(os.fstat(d).st_ino), fsync(d)))
    monkeypatch.setattr(os, "replace", lambda *a: (done.append("replace"), replace(*a)))
    io.atomic_write(path, text("one"))
    assert done == [path.stat().st_ino, "replace", tmp_path.stat().st_ino] and not opened
    monkeypatch.setattr(os, "fsync", lambda d: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match=r"Input/output error: '.*a\.txt'"):
        io.atomic_write(path, text("two"))
    assert path.read_text() == "one" and names(tmp_path) == ["a.txt"] and not opened


@posix
def test_links(tmp_path):
    """A symbolic link stays one, also to where nothing is yet; another hard link keeps what it had."""
    path, link, twin = (tmp_path / name for name in ("a.txt", "link.txt", "twin.txt"))
    link.symlink_to(path)
    io.atomic_write(link, text("one"))
    assert link.is_symlink() and not path.is_symlink() and path.read_text() == "one"
    os.link(path, twin)
    io.atomic_write(link, text("two"))
    assert link.is_symlink() and path.read_text() == "two" and twin.read_text() == "one"
    assert names(tmp_path) == ["a.txt", "link.txt", "twin.txt"]


@pytest.mark.parametrize(
    "name",
    [
        "x" * 250,
        "x" * 255,
        "x." + "y" * 250,
        "é" * 127,
        "𝕏" * 60 + ".safetensors",
        "-rf",
        "--help.safetensors",
        "two\nlines.safetensors",
        " ",
        "~",
        ".hidden",
        "..tmp",
        "[a]*?.png",
        os.fsdecode(b"not-\xff-utf8.bin"),
    ],
    ids=range(14),
)
@posix
def test_odd_names(name, tmp_path, backend):
    for content in ("one", "two"):
        io.atomic_write(tmp_path / name, text(content))
    assert (tmp_path / name).read_text() == "two"
    field = build(backend)
    io.save(tmp_path / name, field)
    assert names(tmp_path) == [name]
    assert list(io.read(tmp_path / name).tensors) == ["network.layers.0.weights", "network.layers.2.weights"]


def test_no_names(tmp_path, backend, file):
    calls = {
        "atomic_write": lambda path: io.atomic_write(path, text("x")),
        "save": lambda path: io.save(path, build(backend)),
        "load": lambda path: io.load(path, backend),
        "read": io.read,
    }

    class Bytes:
        def __fspath__(self):
            return os.fsencode(tmp_path / "a")

    for where, call in calls.items():
        for path in (5, True, None, b"bytes", ["a"], Bytes(), file.open):
            with pytest.raises(TypeError, match=f"^{where}: path is a .*; a string or path is needed"):
                call(path)
        for path in ("", "a\0b", "\ud800", str(tmp_path) + "/x\0" + "y" * 5000):
            with pytest.raises(ValueError, match=f"^{where}: path is '.*; the name of a file is needed") as caught:
                call(path)
            assert len(str(caught.value)) < 200
        with pytest.raises(OSError, match="too long"):
            call(str(tmp_path / ("x" * 256)))
    assert names(tmp_path) == [file.name]


def test_permissions_are_those_of_open(backend, tmp_path):
    plain, path = tmp_path / "plain", tmp_path / "f.safetensors"
    plain.write_text("")
    io.save(path, build(backend))
    assert path.stat().st_mode == plain.stat().st_mode


def _special(folder):
    """Things that are no regular files, by what messages call them."""
    os.mkfifo(folder / "fifo")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "socket"))
    server.close()
    (folder / "link").symlink_to(folder / "fifo")
    (folder / "null").symlink_to("/dev/null")
    found = {"a FIFO": "fifo", "a socket": "socket", "but a FIFO": "link", "a character device": "null"}
    return {kind: folder / name for kind, name in found.items()}


@posix
def test_what_is_no_file_is_left_alone(tmp_path, backend, ns):
    special = _special(tmp_path)
    before = {path: path.stat().st_mode for path in special.values()}
    field, drawn = build(backend), []

    def batch(key):
        drawn.append(key)
        return [ns.Float(0), ns.Float(0)], [ns.Float(0)] * 3

    for kind, path in special.items():
        for call in (
            lambda path: io.save(path, field),
            lambda path: io.atomic_write(path, text("x")),
            lambda path: cn.fit(field, batch, 1, checkpoint=path, progress=False),
            lambda path: cn.fit(field, batch, 1, checkpoint=path, resume=True, progress=False),
            lambda path: io.load(path, backend),
            io.read,
        ):
            with pytest.raises(ValueError, match=f"{path.name}': not a regular file, .*{kind}"):
                call(path)
    assert {path: path.stat().st_mode for path in special.values()} == before and not drawn
    assert names(tmp_path) == sorted(p.name for p in special.values())


@posix
def test_what_becomes_no_file_is_left_alone(tmp_path):
    def write(temporary):
        temporary.write_text("x")
        os.mkfifo(tmp_path / "a")

    with pytest.raises(ValueError, match="a FIFO"):
        io.atomic_write(tmp_path / "a", write)
    assert stat.S_ISFIFO((tmp_path / "a").stat().st_mode) and names(tmp_path) == ["a"]


@posix
def test_circle_of_links(tmp_path, backend):
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for name in ("self", "a"):
        for call in (lambda p: io.save(p, build(backend)), lambda p: io.atomic_write(p, text("x")), io.read):
            with pytest.raises(OSError, match=f"symbolic links.*{name}'"):
                call(tmp_path / name)
    assert names(tmp_path) == ["a", "b", "self"] and (tmp_path / "self").is_symlink()


def test_folders_that_cannot_be_written(tmp_path, backend, file, monkeypatch):
    field = build(backend)
    for call in (lambda path: io.save(path, field), lambda path: io.atomic_write(path, text("x"))):
        with pytest.raises(FileNotFoundError, match="missing"):
            call(tmp_path / "missing" / "f.safetensors")
        with pytest.raises(IsADirectoryError, match=tmp_path.name):
            call(tmp_path)
        with pytest.raises(NotADirectoryError, match=file.name):
            call(file / "f.safetensors")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may write anywhere
    with pytest.raises(PermissionError, match=r"not writable: '.*new\.safetensors'"):
        cn.fit(field, lambda key: None, 1, checkpoint=tmp_path / "new.safetensors", progress=False)
    assert names(tmp_path) == [file.name]


# ---- interrupts, kills, full disks --------------------------------------


class _Failing:
    """A file that takes ``limit`` bytes and then raises."""

    def __init__(self, path, mode, limit, error):
        self.file, self.limit, self.error = open(path, mode), limit, error  # noqa: SIM115

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        if self.limit < memoryview(data).nbytes:
            raise self.error
        self.limit -= memoryview(data).nbytes
        self.file.write(data)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()], ids=repr
)
def test_interrupted_save_keeps_the_old_file(error, backend, file, monkeypatch):
    def fail(*_, **__):
        raise error

    expected = file.read_bytes()
    field = build(backend, seed=1)
    length = 8 + int.from_bytes(expected[:8], "little")
    places = [
        (checkpoint, "open", lambda path, mode: _Failing(path, mode, 0, error)),
        (checkpoint, "open", lambda path, mode: _Failing(path, mode, length + 50, error)),
        (files, "_create", fail),
        (files, "_flush", fail),
        (os, "fsync", fail),
        (os, "replace", fail),
    ]
    for target, name, replacement in places:
        with monkeypatch.context() as patch:
            patch.setattr(target, name, replacement, raising=False)
            with pytest.raises(type(error)) as caught:
                io.save(file, field)
        if isinstance(error, OSError):
            assert str(file) in str(caught.value)
        assert file.read_bytes() == expected and names(file.parent) == [file.name]
    io.save(file, field)
    assert file.read_bytes() != expected


def test_interrupted_load(backend, file, monkeypatch):
    expected = file.read_bytes()
    for target, name in ((safetensors, "safe_open"), (checkpoint, "_header"), (checkpoint, "construct")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                io.load(file, backend)
    assert file.read_bytes() == expected and names(file.parent) == [file.name]
    io.load(file, backend)


WRITER = """
    import sys
    from coopnet.io import atomic_write

    def write(path):
        with open(path, "wb") as file:
            file.write(b"half")
            file.flush()
            print("half", flush=True)
            sys.stdin.readline()
            file.write(b" whole")

    atomic_write(sys.argv[1], write)
    """


@posix
def test_a_killed_writers_file_goes_and_a_living_ones_stays(backend, file):
    """The next writer of a name removes what dead ones left, whatever their number, and nothing else."""
    expected = file.read_bytes()
    living, dead = start(WRITER, file), start(WRITER, file)
    try:
        assert living.stdout.readline() == dead.stdout.readline() == "half\n"
        assert len(names(file.parent)) == 3
        dead.kill()
        dead.wait()
        assert file.read_bytes() == expected and len(names(file.parent)) == 3
        other = file.parent / "other.safetensors"
        io.atomic_write(other, text("x"))
        assert len(names(file.parent)) == 4
        io.save(file, build(backend, seed=1))
        left = [name for name in names(file.parent) if ".tmp" in name]
        assert len(left) == 1 and (file.parent / left[0]).read_bytes() == b"half"
        io.load(file, backend)
        print(file=living.stdin, flush=True)
        assert living.wait(60) == 0 and file.read_bytes() == b"half whole"
    finally:
        for process in (living, dead):
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
    assert names(file.parent) == [file.name, other.name]


@posix
def test_only_stale_files_of_the_name_are_removed(tmp_path):
    import fcntl

    path = tmp_path / "a.png"
    mine, locked, other, fifo, link, folder = (
        tmp_path / f".{name}.tmp.png"
        for name in ("a.000000000000", "a.111111111111", "b.000000000000", "a.222222222222", "a.333333333333", "a.44")
    )
    for victim in (mine, locked, other):
        victim.write_text("x")
    os.mkfifo(fifo)
    link.symlink_to(other)
    folder.mkdir()
    with open(locked, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        io.atomic_write(path, text("picture"))
        assert names(tmp_path) == sorted(p.name for p in (path, locked, other, fifo, link, folder))
    io.atomic_write(path, text("picture"))
    assert names(tmp_path) == sorted(p.name for p in (path, other, fifo, link, folder))


@posix
def test_a_file_taken_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    """Between creating a file and locking it, another writer takes it for stale."""
    import fcntl

    genuine, taken = fcntl.flock, []

    def flock(descriptor, operation):
        if not taken:
            taken.append(next(tmp_path.glob(".a.*.tmp.txt")))
            taken[0].unlink()
        genuine(descriptor, operation)

    def write(temporary):
        with open(temporary, "r+") as file:  # what is there, and no other
            file.write("x")

    opened, real_open, close = [], os.open, os.close
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(real_open(*a, **k)) or opened[-1])
    monkeypatch.setattr(os, "close", lambda descriptor: (opened.remove(descriptor), close(descriptor)))
    monkeypatch.setattr(files.fcntl, "flock", flock)
    io.atomic_write(tmp_path / "a.txt", write)
    assert not opened
    assert taken and names(tmp_path) == ["a.txt"] and (tmp_path / "a.txt").read_text() == "x"


@posix
@pytest.mark.parametrize("locks", ["none here", "no such module"])
def test_without_locks_nothing_is_removed(locks, tmp_path, monkeypatch):
    if locks == "no such module":
        monkeypatch.setattr(files, "fcntl", None)
    else:
        monkeypatch.setattr(files.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(38, "not implemented")))
    stale = tmp_path / ".a.000000000000.tmp.txt"
    stale.write_text("x")
    io.atomic_write(tmp_path / "a.txt", text("x"))
    assert names(tmp_path) == [stale.name, "a.txt"]


def test_a_python_without_locks(tmp_path, monkeypatch):
    """Windows has no fcntl: then there are no locks, and nothing else is missing."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    found = importlib.util.spec_from_file_location("coopnet.io.files_without_locks", files.__file__)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert module.fcntl is None
    module.atomic_write(tmp_path / "a.txt", text("x"))
    assert names(tmp_path) == ["a.txt"] and (tmp_path / "a.txt").read_text() == "x"


@posix
def test_full_disk(backend, file):
    """A limit on the size of files stands in for a full disk."""
    expected = file.read_bytes()
    process = start(
        """
        import resource, signal, sys
        import coopnet as cn
        from coopnet import io

        field = cn.NeuralField(None, cn.MLP(2, 3)).build(sys.argv[2])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            io.save(sys.argv[1], field)
        except OSError as error:
            print(error, flush=True)
        """,
        file,
        backend,
    )
    message = process.communicate()[0]
    assert process.returncode == 0 and str(file) in message
    assert file.read_bytes() == expected and names(file.parent) == [file.name]


@posix
@pytest.mark.usefixtures("ctrl_c_works")
def test_interrupt_of_a_writing_process(file):
    """A real signal, in the middle of a file."""
    expected = file.read_bytes()
    process = start(WRITER, file)
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGINT)
    process.wait(60)
    process.stdin.close()
    process.stdout.close()
    assert process.returncode != 0
    assert file.read_bytes() == expected and names(file.parent) == [file.name]


# ---- several writers and readers ----------------------------------------


@posix
def test_two_processes_write_one_name(tmp_path):
    path = tmp_path / "a.bin"
    code = """
        import sys
        from coopnet.io import atomic_write

        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(40):
            atomic_write(sys.argv[1], lambda path: path.write_bytes(sys.argv[2].encode() * 50_000))
        """
    processes = [start(code, path, letter) for letter in "ab"]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        print(file=process.stdin, flush=True)
    for process in processes:
        process.communicate(timeout=100)
        assert process.returncode == 0
    data = path.read_bytes()
    assert data in (b"a" * 50_000, b"b" * 50_000) and names(tmp_path) == ["a.bin"]


def test_readers_never_see_a_part(tmp_path):
    """One thread replaces a file again and again while another reads it."""
    path = tmp_path / "f.bin"
    path.write_bytes(b"\0" * 10_000)
    stop = threading.Event()

    def writer():
        i = 0
        while not stop.is_set():
            i += 1
            io.atomic_write(path, lambda p, i=i: p.write_bytes(bytes([i % 256]) * 10_000))

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        for _ in range(200):
            data = path.read_bytes()
            assert len(data) == 10_000 and len(set(data)) == 1
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("what", ["replaced", "removed"])
@posix
def test_a_file_that_changes_hands_while_it_is_read(what, backend, file, tmp_path, monkeypatch):
    """What was opened is read to its end."""
    expected = io.read(file).tensors
    other = tmp_path / "other.safetensors"
    io.save(other, build(backend, seed=5, width=16))
    genuine = safetensors.safe_open

    def opened(*arguments, **options):
        result = genuine(*arguments, **options)
        os.replace(other, file) if what == "replaced" else os.unlink(file)
        return result

    monkeypatch.setattr(safetensors, "safe_open", opened)
    found = io.load(file, backend)
    for name, value in expected.items():
        np.testing.assert_array_equal(found.matrix(name), value)


@posix
def test_a_file_cut_short_while_it_is_read(backend, file):
    """An error, where a file that is mapped into memory would end the process."""
    io.save(file, build(backend), tensors={"more": np.zeros(10**6)})
    process = start(
        """
        import os, sys
        import safetensors
        from coopnet import io

        genuine = safetensors.safe_open

        def opened(path, *arguments, **options):
            result = genuine(path, *arguments, **options)
            os.truncate(path, 5000)
            return result

        safetensors.safe_open = opened
        try:
            io.read(sys.argv[1])
        except ValueError as error:
            print(error, flush=True)
        """,
        file,
    )
    message = process.communicate()[0]
    assert process.returncode == 0 and str(file) in message and "truncated" in message


# ---- what a file may ask for --------------------------------------------


def peak():
    """Most memory that this process ever had, in MiB. (Python's tracemalloc crashes beside threads of others.)"""
    if sys.platform != "linux":  # others count bytes, or have no such figure
        return 0

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rewritten(path, keys, value):
    """Put ``value`` into the architecture of a checkpoint."""
    with safetensors.safe_open(path, framework="np") as file:
        meta, data = dict(file.metadata()), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    inner = architecture = json.loads(meta["coopnet"])
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    st.save_file(data, path, metadata=meta | {"coopnet": json.dumps(architecture)})


def _fourier(n, in_features=2):
    return {
        "type": "coopnet.Fourier", "n_frequencies": n, "scale": 1.0, "trained": False, "seed": 0,
        "in_features": in_features,
    }  # fmt: skip


def _linear(n_in, n_out):
    return {
        "type": "coopnet.Linear", "in_features": n_in, "out_features": n_out, "bias": True, "init": "zero", "gain": 1.0,
    }  # fmt: skip


def _sequential(*layers):
    return {"type": "coopnet.Sequential", "prefix": "", "layers": list(layers)}


_FIELDS = {
    "fourier": lambda: cn.NeuralField(cn.Fourier(4, in_features=2), cn.MLP(out_features=1, width=8, depth=1)),
    "trained": lambda: cn.NeuralField(
        cn.Fourier(4, in_features=2, trained=True), cn.MLP(out_features=1, width=8, depth=1)
    ),
    "hash": lambda: cn.NeuralField(cn.HashGrid(2, n_levels=2, hashmap_size=64), cn.MLP(out_features=1, width=8)),
    "dense": lambda: cn.NeuralField(cn.Grid(2, "dense", 2, base_resolution=4), cn.MLP(out_features=1, width=8)),
    "permutohedral": lambda: cn.NeuralField(
        cn.Permutohedral(2, n_levels=2, hashmap_size=64), cn.MLP(out_features=1, width=8)
    ),
    "composite": lambda: cn.NeuralField(
        cn.Composite([cn.Embedding(5, 3), cn.Fourier(4)], [1, 2]), cn.MLP(out_features=1, width=8), in_features=3
    ),
    "bare": lambda: cn.NeuralField(cn.Sinusoidal(1, in_features=2), cn.Sequential(cn.Tanh())),
}
#: (field, place in its architecture, value there, what the message says); constructors may be the first to object.
_HUGE = [
    ("fourier", ("encoding", "n_frequencies"), 2**25, "n_frequencies"),
    ("fourier", ("encoding", "n_frequencies"), 10**12, "n_frequencies"),
    ("fourier", ("encoding", "n_frequencies"), 10**4000, "n_frequencies"),
    ("fourier", ("encoding",), _fourier(2**14, 2**9), r"encoding .*n_frequencies \* in_features = 16384 \* 512 "),
    ("fourier", ("encoding", "in_features"), 2**30, "in_features"),
    ("fourier", ("encoding", "in_features"), -1, "encoding.in_features is -1"),
    ("fourier", ("in_features",), 2**40, "in_features"),
    ("fourier", ("in_features",), -1, "in_features is -1"),
    ("trained", ("encoding", "n_frequencies"), 2**25, "n_frequencies"),
    ("fourier", ("network",), _linear(60000, 60000), r"network .*in_features \* out_features = 60000 \* 60000 "),
    ("fourier", ("network",), _sequential(_linear(8, 2**40)), "out_features"),
    ("fourier", ("network",), _sequential(*[_fourier(2**14, 8)] * 20), r"network\.layers\.\d+ .*n_frequencies"),
    ("fourier", ("network",), _sequential(_linear(8, -1), _fourier(2**14, -1)), "in_features is -1"),
    ("hash", ("encoding", "n_levels"), 10**10, "n_levels"),
    ("hash", ("encoding", "in_features"), 10**10, "in_features"),
    ("hash", ("encoding", "hashmap_size"), 2**40, "shape|hashmap_size|an array can hold"),
    ("hash", ("encoding", "base_resolution"), 10**4000, "finest level|base_resolution"),
    ("dense", ("encoding", "n_levels"), 10**10, "n_levels"),
    ("dense", ("encoding", "base_resolution"), 2**28, "2\\^32"),
    ("permutohedral", ("encoding", "in_features"), 10**9, "in_features"),
    ("composite", ("encoding", "nested", 0, "count"), 2**28, r"encoding\.nested\.0 takes count \* width"),
    ("composite", ("encoding", "nested", 1, "n_frequencies"), 2**25, r"encoding\.nested\.1.*n_frequencies"),
    ("bare", ("encoding", "octaves"), 10**12, "encoding.*(features|octaves)"),
]


@pytest.mark.parametrize("case", range(len(_HUGE)), ids=lambda i: f"{_HUGE[i][0]} {i}")
def test_a_small_file_cannot_ask_for_much(case, backend, tmp_path):
    name, keys, value, message = _HUGE[case]
    path = tmp_path / "f.safetensors"
    io.save(path, _FIELDS[name]().build(backend))
    io.load(path, backend)
    rewritten(path, keys, value)
    before = peak()
    with pytest.raises(ValueError, match=message) as caught:
        io.load(path, backend)
    assert peak() - before < 64
    assert str(path) in str(caught.value) and len(str(caught.value)) < 1200


def test_sixteen_numbers_for_each_that_is_stored(backend):
    """And 2^20 besides, of all layers together."""
    whole = cn.NeuralField(None, cn.Linear(64, 16409), in_features=64)  # 64 * 16409 = 16 * 100 + 2^20
    parts = cn.NeuralField(
        None, cn.Sequential(cn.Linear(64, 16000), cn.ReLU(), cn.Linear(16000, 1), cn.Linear(4, 2544)), in_features=64
    )
    for field, name in ((whole, "network"), (parts, "network.layers.3")):
        amounts.check_amounts(field, 100)
        amounts.check_amounts(field, 101)
        product = r"in_features \* out_features = \d+ \* \d+"
        with pytest.raises(ValueError, match=rf"^{name} takes {product} numbers, but the file holds 99\.$"):
            amounts.check_amounts(field, 99)


def test_what_layers_take():
    """By name, with 1 for what is not known yet; layers without numbers of their own take none."""
    for layer, factors in (
        (cn.Linear(3, 5), {"in_features": 3, "out_features": 5}),
        (cn.Linear(-1, 7), {"in_features": 1, "out_features": 7}),
        (cn.Linear(7, -1), {"in_features": 7, "out_features": 1}),
        (drnn.Linear(-1, 7), {"in_features": 1, "out_features": 7}),
        (cn.Embedding(6, 4), {"count": 6, "width": 4}),
        (cn.Fourier(9, in_features=3), {"n_frequencies": 9, "in_features": 3}),
        (
            cn.HashGrid(3, n_levels=5, n_features_per_level=4),
            {"n_levels": 5, "n_features_per_level": 4, "in_features": 3},
        ),
        (cn.Sinusoidal(4, in_features=3), {"features": 24}),
        (cn.Sinusoidal(4, in_features=1), {"features": 8}),
        (cn.Sinusoidal(4), {}),
        (cn.OneBlob(8, in_features=2), {"features": 16}),
        (cn.Tanh(), {}),
        (None, {}),
    ):
        assert amounts._factors(layer, "here") == factors, layer
    for layer in (cn.Fourier(9), cn.HashGrid(n_levels=5)):
        with pytest.raises(ValueError, match=r"^here\.in_features is -1, but every file states it"):
            amounts._factors(layer, "here")


def test_layers_inside_others():
    """Each with its place; parts of a composite that get no coordinates are never allocated."""
    inner = cn.Sequential(cn.Linear(2, 3), cn.Residual(cn.Linear(3, 3)))
    composite = cn.Composite([cn.Identity(), cn.Fourier(64), cn.OneBlob(4)], [2, 0, 1])
    field = cn.NeuralField(composite, inner)
    assert [where for where, _ in amounts._layers(field)] == [
        "", "encoding", "encoding.nested.0", "encoding.nested.2",
        "network", "network.layers.0", "network.layers.1", "network.layers.1.body",
    ]  # fmt: skip


def test_what_a_field_has_may_be_in_a_file(backend, tmp_path):
    """Encodings with little behind them, of which a file holds few numbers, are no attack."""
    path = tmp_path / "f.safetensors"
    for encoding in (cn.Fourier(2**12, in_features=3), cn.SparseProjection(5000, 16, 0.01), cn.Permutohedral(20, 2)):
        io.save(path, cn.NeuralField(encoding, cn.Linear(-1, 1)).build(backend))
        io.load(path, backend)
    skipped = cn.Composite([cn.Identity(), cn.Fourier(64)], [2, 0])
    io.save(path, cn.NeuralField(skipped, cn.Linear(-1, 1), in_features=2).build(backend))
    io.load(path, backend)


# ---- arguments of save --------------------------------------------------


def test_kinds_of_tensors_and_metadata(backend, tmp_path, monkeypatch):
    path, field = tmp_path / "f.safetensors", build(backend)
    for wrong in (True, 1, 0, "text", [], [("a", 1)], np.zeros(3), {1, 2}):
        with pytest.raises(TypeError, match=r"^save: tensors is a \w+; a mapping from names to arrays is needed"):
            io.save(path, field, tensors=wrong)
        with pytest.raises(TypeError, match=r"^save: metadata is a \w+; a mapping from names to values is needed"):
            io.save(path, field, metadata=wrong)
    for wrong in (None, "text", object(), 1j, [[1], [1, 2]], {"b": 1}, np.array(["a"]), np.longdouble(1)):
        with pytest.raises(TypeError, match=r"^save: tensors\['a'\] "):
            io.save(path, field, tensors={"a": wrong})
    with pytest.raises(ValueError, match="no valid Unicode"):
        io.save(path, field, tensors={"\ud800": 1})
    for key in (1, None, b"a", "x" * 10):
        if not isinstance(key, str):
            with pytest.raises(TypeError, match="names must be strings"):
                io.save(path, field, tensors={key: 1})
    deep = circle = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="metadata must be something JSON can hold"):
        io.save(path, field, metadata={"a": deep})
    while deep:  # freed one by one, where a long chain would overflow the stack
        deep = deep.pop()
    circle.append(circle)
    with pytest.raises(ValueError, match="metadata must be something JSON can hold"):
        io.save(path, field, metadata={"a": circle})
    monkeypatch.setattr(checkpoint, "_LONGEST", 2000)
    with pytest.raises(ValueError, match=r"take \d+ bytes; a safetensors file has at most 2000"):
        io.save(path, field, metadata={"a": "x" * 2000})
    assert not names(tmp_path)


def test_any_order_of_bytes_and_shape(backend, tmp_path):
    path = tmp_path / "f.safetensors"
    arrays = {
        "big": np.arange(5, dtype=">f8"), "flag": np.array([True, False]), "half": np.float16([[1, 2], [3, 4]]).T,
        "none": np.zeros((0, 3), np.int8), "one": np.uint64(7), "é\n\"'": np.arange(3, dtype=np.int16), "": np.ones(1),
    }  # fmt: skip
    io.save(path, build(backend), tensors=arrays)
    for found in (io.read(path).tensors, st.load_file(path)):
        for name, value in arrays.items():
            stored = found[f"train.{name}"]
            assert stored.dtype == value.dtype.newbyteorder("=") and stored.shape == np.shape(value)
            np.testing.assert_array_equal(stored, value)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8 : 8 + length]).items():  # for readers that map files into memory
        if name != "__metadata__":
            size = int(entry["dtype"][1:]) // 8 if entry["dtype"] != "BOOL" else 1
            assert (8 + length + entry["data_offsets"][0]) % size == 0


def test_old_package(backend, file, monkeypatch):
    monkeypatch.setattr(safetensors, "__version__", "0.7.1")
    with pytest.raises(ImportError, match=r"safetensors 0\.8 or newer, but 0\.7\.1"):
        io.load(file, backend)
