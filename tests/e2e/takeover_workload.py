"""takeover_workload.py DIR STOP_FILE: works in DIR until STOP_FILE is there; any failed call or wrong byte ends it with 1.

A database with a write-ahead log, files made exclusively, renamed, appended to and verified, and one that is open and has no name for the whole time.
"""
import hashlib
import os
import random
import sqlite3
import sys
import threading

directory, stop_file = sys.argv[1:]
failures = []
rounds = {"database": 0, "files": 0}


def run(work):
    def body():
        try:
            work()
        except Exception as error:  # whatever it is, it is the finding
            failures.append(f"{work.__name__}: {type(error).__name__}: {error}")
            open(stop_file, "a").close()

    thread = threading.Thread(target=body)
    thread.start()
    return thread


def going():
    return not os.path.exists(stop_file)


def database():
    path = os.path.join(directory, "database")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute("create table numbers (n integer primary key, digest text)")
    n = 0
    while going():
        connection.execute("begin")
        for _ in range(10):
            n += 1
            connection.execute("insert into numbers values (?, ?)", (n, hashlib.sha256(str(n).encode()).hexdigest()))
        connection.execute("commit")
        rounds["database"] += 1
    connection.close()
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    rows = connection.execute("select n, digest from numbers order by n").fetchall()
    assert len(rows) == n, f"{len(rows)} rows of {n}"
    assert all(digest == hashlib.sha256(str(k).encode()).hexdigest() for k, digest in rows)


def files():
    chance = random.Random(7)
    nameless = os.open(os.path.join(directory, "nameless"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(os.path.join(directory, "nameless"))
    written = b""
    while going():
        name, other = (os.path.join(directory, x) for x in ("new", "kept"))
        data = chance.randbytes(chance.randrange(1, 200000))
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        assert os.write(fd, data) == len(data)
        if chance.randrange(3) == 0:
            os.fsync(fd)
        os.close(fd)
        os.rename(name, other)
        with open(other, "ab") as file:
            file.write(b"tail")
        with open(other, "rb") as file:
            assert file.read() == data + b"tail", "contents"
        os.unlink(other)
        os.mkdir(name)
        assert os.listdir(name) == []
        os.rmdir(name)
        if len(written) < 1 << 20:
            more = chance.randbytes(1000)
            assert os.pwrite(nameless, more, len(written)) == 1000
            written += more
        rounds["files"] += 1
    os.posix_fadvise(nameless, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(nameless, len(written), 0) == written, "what has no name"
    os.close(nameless)


for thread in [run(database), run(files)]:
    thread.join()
print(f"{rounds['database']} transactions, {rounds['files']} rounds of files", *failures, sep="\n")
sys.exit(1 if failures else 0)
