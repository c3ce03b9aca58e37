"""How a gang is expressed to the scheduler or queue of a cluster: one pure file each, see `protocol`."""
