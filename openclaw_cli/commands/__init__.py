"""One file per command; each holds one function of the command's name, and EPILOG with worked examples."""
