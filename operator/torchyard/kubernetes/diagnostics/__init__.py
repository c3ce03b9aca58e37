"""Why a pod is not created, does not start, was deleted or ended: reason codes and evidence."""
