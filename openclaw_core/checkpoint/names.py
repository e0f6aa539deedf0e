"""Names of files and folders in and around a checkpoint."""

from __future__ import annotations

MANIFEST = "openclaw.json"
HF_FOLDER = "hf"
TRACKER = "latest_checkpointed_iteration.txt"
TEMPLATES_FOLDER = "additional_chat_templates"
CARRIED_FILE = "carried.safetensors"
JOURNAL = "journal.jsonl"
REPLACES = ".openclaw-replaces"  # in a target whose predecessor isn't removed yet
PARTIAL, OLD, LOCK = ".partial", ".old", ".lock"
