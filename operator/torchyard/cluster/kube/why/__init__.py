"""Why a pod does not come to be, does not start, goes or ended: catalogue codes and evidence, from what is there."""
