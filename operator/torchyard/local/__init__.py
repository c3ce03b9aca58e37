"""The local cluster: objects in memory and on disk, each pod a process group on this machine."""
