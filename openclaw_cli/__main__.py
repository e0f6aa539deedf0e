"""python -m openclaw_cli: the program under a name that no other can shadow."""

from openclaw_cli.app import main

if __name__ == "__main__":
    main()
