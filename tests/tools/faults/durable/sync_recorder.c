/*
 * Records how much of each file is on the disk, for a power cut that is played later (power.py): preloaded into a node,
 * it appends a line to the file $SYNC_RECORD whenever a process has synced a regular file:
 *
 *     INODE SIZE NANOSECONDS
 *
 * SIZE is what the file had before the sync began, at the time NANOSECONDS of CLOCK_MONOTONIC: what is written while
 * the sync runs may not be on the disk afterwards.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void record(const struct stat *file, const struct timespec *at) {
    const char *path = getenv("SYNC_RECORD");
    if (path == NULL)
        return;
    int kept = errno;
    int out = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (out >= 0) {
        char line[80];
        int length = snprintf(line, sizeof line, "%lu %lld %lld\n", (unsigned long)file->st_ino, (long long)file->st_size,
                              at->tv_sec * 1000000000LL + at->tv_nsec);
        if (write(out, line, (size_t)length) != length)
            abort(); /* a power cut would be played that is harder than it was */
        close(out);
    }
    errno = kept;
}

static int synced(int (*sync)(int), int descriptor) {
    struct stat file;
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    int regular = fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode);
    int result = sync(descriptor);
    if (result == 0 && regular)
        record(&file, &at);
    return result;
}

int fsync(int descriptor) {
    static int (*sync)(int);
    if (sync == NULL)
        sync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return synced(sync, descriptor);
}

int fdatasync(int descriptor) {
    static int (*sync)(int);
    if (sync == NULL)
        sync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return synced(sync, descriptor);
}
