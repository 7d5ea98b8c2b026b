"""Files of real reports as bad disks, broken copies and other programs leave them."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

from generated import COLUMNS

_BLOCK = 4096


def _cut(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data[: rng.randrange(len(data))])


def _flip(data: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 8, 100))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _near_an_end(data: bytearray, rng: random.Random) -> bytes:
    """Flips in the head or the tail, where files say what they hold."""
    for _ in range(rng.choice((1, 3, 10))):
        at = rng.randrange(min(400, len(data)))
        data[at if rng.random() < 0.5 else -at] ^= 1 << rng.randrange(8)
    return bytes(data)


def _zero(data: bytearray, rng: random.Random) -> bytes:
    first = rng.randrange(len(data))
    length = min(rng.choice((16, 512, _BLOCK, 65_536)), len(data) - first)
    data[first : first + length] = bytes(length)
    return bytes(data)


def _swap(data: bytearray, rng: random.Random) -> bytes:
    size = min(rng.choice((512, _BLOCK)), max(len(data) // 3, 1))
    one, other = sorted(rng.randrange(max(len(data) // size, 1)) * size for _ in range(2))
    one_block, other_block = data[one : one + size], data[other : other + size]
    data[other : other + size] = one_block[: len(other_block)]
    data[one : one + size] = other_block + one_block[len(other_block) :]
    return bytes(data)


def _twice(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data + data[rng.randrange(len(data)) :])


def _noise(data: bytearray, rng: random.Random) -> bytes:
    first = rng.randrange(len(data))
    return bytes(data[:first] + rng.randbytes(len(data) - first))


BYTES = (_cut, _flip, _flip, _near_an_end, _zero, _swap, _twice, _noise)


def spoil_bytes(path: Path, rng: random.Random) -> None:
    """Changes the bytes of a file in place."""
    data = path.read_bytes()
    path.write_bytes(rng.choice(BYTES)(bytearray(data), rng) if data else b"x")


def spoil_sqlite(path: Path, rng: random.Random) -> None:
    """Changes the tables of a SQLite export as somebody's script might, or its bytes."""
    if rng.random() < 0.6:
        spoil_bytes(path, rng)
        return
    db = sqlite3.connect(path)
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    table = rng.choice([name for name in tables if name in COLUMNS])
    columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
    column = rng.choice(columns)
    for statement in rng.choice(
        (
            (f'DROP TABLE "{table}"',),
            (f'DELETE FROM "{table}"',),
            (f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column} é"',),
            (f'ALTER TABLE "{table}" RENAME TO "{table}_old"',),
            (f'CREATE TABLE "new" AS SELECT * FROM "{table}"', f'DROP TABLE "{table}"',
             f'UPDATE "new" SET "{column}" = NULL', f'ALTER TABLE "new" RENAME TO "{table}"'),
            (f'CREATE TABLE "new" AS SELECT * FROM "{table}"', f'DROP TABLE "{table}"',
             f'UPDATE "new" SET "{column}" = "{column}" || \'x\'', f'ALTER TABLE "new" RENAME TO "{table}"'),
            (f'CREATE TABLE "new" AS SELECT * FROM "{table}"', f'DROP TABLE "{table}"',
             f'CREATE VIEW "{table}" AS SELECT * FROM "new"'),
            ("PRAGMA journal_mode = WAL",),
            (f'INSERT OR IGNORE INTO "{table}" SELECT * FROM "{table}"',),
        )
    ):  # fmt: skip
        db.execute(statement)
    db.commit()
    db.close()


def spoil_parquet(folder: Path, rng: random.Random) -> None:
    """Changes one file of a parquet folder, or takes it away."""
    files = [file for file in sorted(folder.glob("*.parquet")) if file.stem in COLUMNS]
    file = rng.choice(files)
    way = rng.randrange(10)
    if way == 0:
        file.unlink()
    elif way == 1:
        file.write_bytes(b"")
    elif way == 2:
        file.unlink()
        file.mkdir()
    elif way == 3:
        shutil.copy(rng.choice([other for other in files if other != file]), file)
    else:
        spoil_bytes(file, rng)
