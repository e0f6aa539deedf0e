"""Tables of the store. Every state of a turn or sample is a row with a reason; ids are made here, client ids are only text."""

from __future__ import annotations

APPLICATION_ID = 0x4F434C57
"""Marks the file as a store of this program ("OCLW"), so that any other SQLite file is refused."""

SCHEMA_VERSION = 1

TABLES = """
CREATE TABLE IF NOT EXISTS sessions (
    session_id    TEXT PRIMARY KEY,
    id_source     TEXT NOT NULL CHECK (id_source IN ('header', 'user', 'generated')),
    client_id     TEXT,                -- the id that won, as the client wrote it; NULL where we generated one
    header_id     TEXT,
    user_id       TEXT,
    started_at    REAL NOT NULL,
    last_seen_at  REAL NOT NULL,
    ended_at      REAL,
    end_reason    TEXT
);
CREATE UNIQUE INDEX IF NOT EXISTS sessions_by_client ON sessions (id_source, client_id) WHERE client_id IS NOT NULL;

CREATE TABLE IF NOT EXISTS turns (
    seq                INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id            TEXT NOT NULL UNIQUE,
    session_id         TEXT NOT NULL REFERENCES sessions,
    lineage_id         TEXT NOT NULL,
    parent_turn_id     TEXT,
    continuation_key   TEXT NOT NULL,  -- hash of messages + reply: what a request that goes on from here begins with
    state              TEXT NOT NULL CHECK (state IN ('open', 'closed', 'sampled', 'dropped')),
    reason             TEXT,           -- why a turn was dropped
    next_turn_id       TEXT,
    finish_reason      TEXT NOT NULL,
    weight_version     INTEGER NOT NULL,
    thinking           INTEGER NOT NULL,
    flags              TEXT NOT NULL,
    created_at         REAL NOT NULL,
    closed_at          REAL,
    judged_at          REAL,
    -- Large cells come last, so that counting rows needn't read past them.
    request            TEXT NOT NULL,  -- what was asked for and what was done: token limits, sampling, fields left out
    messages           TEXT NOT NULL,
    tools              TEXT NOT NULL,
    reply              TEXT NOT NULL,
    text               TEXT NOT NULL,
    next_state         TEXT,
    prompt_ids         BLOB NOT NULL,
    response_ids       BLOB NOT NULL,
    response_logprobs  BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS turns_by_continuation ON turns (continuation_key);
CREATE INDEX IF NOT EXISTS turns_by_state ON turns (state, seq);
CREATE INDEX IF NOT EXISTS turns_by_session ON turns (session_id, seq);

CREATE TABLE IF NOT EXISTS votes (
    turn_id        TEXT NOT NULL REFERENCES turns (turn_id),
    kind           TEXT NOT NULL CHECK (kind IN ('verdict', 'hint', 'guard')),
    vote_index     INTEGER NOT NULL,
    value          INTEGER,            -- NULL is no vote, which is not a 0
    hint           TEXT,
    reason         TEXT,               -- why there is no vote
    raw            TEXT NOT NULL,
    prompt_sha256  TEXT NOT NULL,
    seconds        REAL NOT NULL,
    created_at     REAL NOT NULL,
    PRIMARY KEY (turn_id, kind, vote_index)
);

CREATE TABLE IF NOT EXISTS hints (
    turn_id   TEXT NOT NULL REFERENCES turns (turn_id),
    position  INTEGER NOT NULL,
    text      TEXT NOT NULL,
    votes     INTEGER NOT NULL,
    accepted  INTEGER NOT NULL,
    reason    TEXT,
    PRIMARY KEY (turn_id, position)
);

CREATE TABLE IF NOT EXISTS samples (
    seq              INTEGER PRIMARY KEY AUTOINCREMENT,
    sample_id        TEXT NOT NULL UNIQUE,
    turn_id          TEXT NOT NULL UNIQUE REFERENCES turns (turn_id),
    state            TEXT NOT NULL CHECK (state IN ('ready', 'taken', 'trained', 'dropped')),
    reason           TEXT,
    kind             TEXT NOT NULL,
    reward           REAL NOT NULL,
    loss_mask        BLOB NOT NULL,
    step_spans       TEXT,
    weight_version   INTEGER NOT NULL,
    trained_step     INTEGER,
    created_at       REAL NOT NULL,
    taken_at         REAL,
    scored_at        REAL,
    trained_at       REAL,
    CHECK ((state = 'trained') = (trained_step IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS samples_by_state ON samples (state, seq);

CREATE TABLE IF NOT EXISTS candidates (
    sample_id          TEXT NOT NULL REFERENCES samples (sample_id),
    position           INTEGER NOT NULL,
    hint               TEXT,
    hint_votes         INTEGER,
    hinted_prompt_ids  BLOB NOT NULL,
    PRIMARY KEY (sample_id, position)
);

CREATE TABLE IF NOT EXISTS events (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    at       REAL NOT NULL,
    kind     TEXT NOT NULL,
    subject  TEXT,                     -- a turn, sample or session id
    detail   TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_subject ON events (subject);

CREATE TABLE IF NOT EXISTS counters (
    name   TEXT PRIMARY KEY,
    value  INTEGER NOT NULL
);
"""
