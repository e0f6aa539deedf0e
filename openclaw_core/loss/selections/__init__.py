"""Selection rules, one per file: the file's name is the rule's name and it binds RULE."""
