"""The SQLite file itself: one connection per thread, WAL, short write transactions, a checked schema version."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from openclaw_core.errors import UserError
from openclaw_core.rollout.store.schema import APPLICATION_ID, SCHEMA_VERSION, TABLES

BUSY_TIMEOUT_S = 30.0


class Database:
    """A store's file, made when absent (readable by its owner alone).

    Raises UserError when the file is not a store, has another schema version, or is absent and read_only is set. A connection
    is opened per thread on first use and never shared; a forked child opens its own.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path = Path(path).absolute()
        self.read_only = read_only
        self._local = threading.local()
        self._lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._prepare()

    def close(self) -> None:
        """Closes the connections of all threads; nothing may use the store meanwhile."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
        self._local = threading.local()

    @property
    def connection(self) -> sqlite3.Connection:
        if getattr(self._local, "pid", None) != os.getpid():
            self._local.connection = self._connect()
            self._local.pid = os.getpid()
        return self._local.connection

    @contextlib.contextmanager
    def write(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """One write transaction: all of it or nothing. durable also survives a loss of power, at the price of a sync."""
        connection = self.connection
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        mode = "ro" if self.read_only else "rw"
        # check_same_thread is off only so that close() can close the connections of threads that ended.
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys = ON")
        with self._lock:
            self._connections.append(connection)
        return connection

    def _prepare(self) -> None:
        if not self.path.exists():
            if self.read_only:
                raise UserError(f"There is no store at {self.path}.", "Give the folder of a run that has started.")
            if not self.path.parent.is_dir():
                raise UserError(f"The folder of the store {self.path} does not exist.", "Make it first.")
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            self._check_or_create()
        except sqlite3.DatabaseError as error:
            self.close()
            raise UserError(f"{self.path} is not a store of this program ({error}).", "Give another path.") from error

    def _check_or_create(self) -> None:
        connection = self.connection
        if not self.read_only and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            connection.execute("PRAGMA journal_mode = WAL")
            marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
            connection.executescript(f"BEGIN IMMEDIATE; {TABLES} {marks} COMMIT;")
        application, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        if application != APPLICATION_ID:
            raise sqlite3.DatabaseError("it is some other SQLite file")
        if version != SCHEMA_VERSION:
            raise UserError(
                f"The store {self.path} has schema version {version}, and this program reads version {SCHEMA_VERSION}.",
                "Use the program's version that wrote the run, or start a new run.",
            )
