"""One module for each command, imported when it is called, and what several of them share."""
