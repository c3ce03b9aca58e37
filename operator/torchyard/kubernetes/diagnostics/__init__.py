"""Why a pod does not come to be, does not start, goes or ended: reason codes and evidence, from what is there."""
