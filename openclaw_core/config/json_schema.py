"""The JSON schema of a profile file: the configuration's, with extends and names of model facts, and nothing required."""

from __future__ import annotations

from typing import Any

from .schema import Config
from .sources import model_names


def profile_schema() -> dict[str, Any]:
    """A schema that every valid profile file meets; a profile may leave out what it extends."""
    schema = Config.model_json_schema()
    schema["title"] = "OpenClaw profile"
    schema.pop("required", None)
    for definition in schema["$defs"].values():
        if definition.get("title") != "ModelFacts":
            definition.pop("required", None)
    name_or_names = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    extends = {"anyOf": name_or_names, "description": "Profile or profiles whose values come first, by name or path."}
    schema["properties"] = {"extends": extends, **schema["properties"]}
    facts = schema["$defs"]["ModelSource"]["properties"]["architecture"]
    facts["anyOf"].append({"type": "string", "examples": model_names()})
    devices = schema["$defs"]["Partition"]["properties"]["allowed_devices"]
    devices["anyOf"].append({"type": "string", "examples": ["2,3,5-7"]})
    return schema
