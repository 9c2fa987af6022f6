"""From a binary to a launch: drivers, the interpreter, workspaces."""
