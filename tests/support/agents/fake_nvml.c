/* NVML of a machine with two GPUs, for the real agent. FAKE_NVML names a FIFO of events: "GPU XID" in each line.
 * A file FAKE_NVML.seen appears when the agent asks for the next event, so that it has the one before.
 * The file FAKE_NVML.children has the process ids of the children that the agent had when it opened NVML.
 * A file FAKE_NVML.lost: GPU 1 is lost. A file FAKE_NVML.rows: rows of GPU 0 that cannot be replaced. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <poll.h>

typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } event;
typedef struct { unsigned long long total, available, used; } memory;
enum { SUCCESS = 0, NOT_SUPPORTED = 3, TIMEOUT = 10, GPU_IS_LOST = 15 };

static int devices[2];
static int there(const char *suffix) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", getenv("FAKE_NVML"), suffix);
    return access(path, F_OK) == 0;
}
static int index_of(void *device) { return (int *)device - devices; }

int nvmlInit_v2(void) {
    char path[4096], children[4096];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    int from = open(path, O_RDONLY);
    int length = read(from, children, sizeof children);
    snprintf(path, sizeof path, "%s.children.new", getenv("FAKE_NVML"));
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (length > 0 && write(to, children, length) != length) return NOT_SUPPORTED;
    close(from);
    close(to);
    char done[4096];
    snprintf(done, sizeof done, "%s.children", getenv("FAKE_NVML"));
    rename(path, done);
    return SUCCESS;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &devices[index]; return SUCCESS; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-fake-%d", index_of(device));
    return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) { (void)device; snprintf(text, size, "Fake"); return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *device, memory *info) {
    if (index_of(device) == 1 && there("lost")) return GPU_IS_LOST;
    info->total = 80ull << 30; info->used = 1ull << 30; info->available = info->total - info->used;
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *correctable, unsigned *broken, unsigned *pending, unsigned *failed) {
    *correctable = 0; *broken = *pending = *failed = index_of(device) == 0 && there("rows");
    return SUCCESS;
}
int nvmlEventSetCreate(void **set) { *set = devices; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    (void)device; (void)types; (void)set;
    return SUCCESS;
}
int nvmlEventSetWait_v2(void *set, event *found, unsigned milliseconds) {
    static int fifo = -1, sent = 0;
    (void)set;
    if (sent) {
        char path[4096];
        snprintf(path, sizeof path, "%s.seen", getenv("FAKE_NVML"));
        close(open(path, O_WRONLY | O_CREAT, 0600));
    }
    if (fifo < 0) fifo = open(getenv("FAKE_NVML"), O_RDWR);  /* with a writer of its own it never ends */
    struct pollfd readable = {.fd = fifo, .events = POLLIN};
    if (poll(&readable, 1, milliseconds) <= 0) return TIMEOUT;
    char line[64] = {0};
    for (int length = 0; length < 63 && read(fifo, line + length, 1) == 1 && line[length] != '\n'; length++);
    int gpu = 0, xid = 0;
    sscanf(line, "%d %d", &gpu, &xid);
    memset(found, 0, sizeof *found);
    found->device = &devices[gpu]; found->type = 8; found->data = xid; sent = 1;
    return SUCCESS;
}
