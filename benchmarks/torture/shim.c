/* Fails one file call of a process below a folder: the fault injection of `python -m benchmarks.torture`.
 *
 * Loaded with LD_PRELOAD. It does nothing until `torture_arm` names a folder. Every call on a path below that folder,
 * or on a descriptor of such a path, is then written to a log as FUNCTION PATH. Of the calls of one function on paths
 * that match a pattern, one fails with `error`, and the log says FAILED; with error 0, that read or write is cut to half
 * its length. Python, and the compiled extensions that covey writes with, call the C library, so none is missed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX], wanted[64], pattern[PATH_MAX];
static long left = -1;
static int error_number = 0, log_file = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }
#define REAL(type, name, args) \
    static type(*next) args; \
    if (!next) next = (type(*) args)real(name)

/* Lets call number `occurrence` (from 0; -1 for none) of `function` on a path that matches `like` fail. */
void torture_arm(const char *below, const char *function, const char *like, long occurrence, int error, int log) {
    snprintf(wanted, sizeof wanted, "%s", function);
    snprintf(pattern, sizeof pattern, "%s", like);
    left = occurrence;
    error_number = error;
    log_file = log;
    snprintf(folder, sizeof folder, "%s", below);
}

static void note(const char *word, const char *path) {
    static ssize_t (*next)(int, const void *, size_t);
    if (!next) next = (ssize_t(*)(int, const void *, size_t))real("write");
    char line[PATH_MAX + 64];
    int size = snprintf(line, sizeof line, "%s %s\n", word, path);
    if (log_file >= 0 && next(log_file, line, (size_t)size) < 0) log_file = -1;
}

/* Whether this call is the one that must fail: 0 no, 1 with errno set, 2 cut short. */
static int fails(const char *function, const char *path, int can_be_short) {
    size_t length = strlen(folder);
    if (!length || !path || strncmp(path, folder, length)) return 0;
    path += length;
    if (*path && *path != '/') return 0; /* a sibling whose name begins alike */
    int is_it = 0;
    pthread_mutex_lock(&lock);
    note(function, path);
    if (left >= 0 && !strcmp(function, wanted) && !fnmatch(pattern, path, 0)) is_it = left-- == 0;
    if (is_it && (error_number || can_be_short)) note("FAILED", path);
    pthread_mutex_unlock(&lock);
    if (!is_it) return 0;
    if (error_number == 0) return can_be_short ? 2 : 0;
    errno = error_number;
    return 1;
}

static const char *resolved(int directory, const char *path, char *buffer) {
    if (!path) return NULL;
    if (path[0] == '/') return path;
    char base[PATH_MAX];
    if (directory == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return NULL;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t size = readlink(link, base, sizeof base - 1);
        if (size < 0) return NULL;
        base[size] = 0;
    }
    snprintf(buffer, PATH_MAX, "%.*s/%.*s", PATH_MAX / 2 - 2, base, PATH_MAX / 2 - 2, path);
    return buffer;
}

static const char *path_of(int file, char *buffer) {
    if (!folder[0]) return NULL;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, buffer, PATH_MAX - 1);
    if (size < 0) return NULL;
    buffer[size] = 0;
    return buffer;
}

#define AT(function, directory, path) \
    char buffer[PATH_MAX]; \
    if (folder[0] && fails(function, resolved(directory, path, buffer), 0)) return -1
#define ON(function, file) \
    char buffer[PATH_MAX]; \
    if (folder[0] && fails(function, path_of(file, buffer), 0)) return -1

#define OPEN(name, plain) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, (const char *, int, ...)); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        AT("open", AT_FDCWD, path); \
        return next(path, flags, mode); \
    } \
    int plain(int directory, const char *path, int flags, ...) { \
        REAL(int, #plain, (int, const char *, int, ...)); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        AT("open", directory, path); \
        return next(directory, path, flags, mode); \
    }
OPEN(open, openat)
OPEN(open64, openat64)

#define STREAM(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(FILE *, #name, (const char *, const char *)); \
        char buffer[PATH_MAX]; \
        if (folder[0] && fails("open", resolved(AT_FDCWD, path, buffer), 0)) return NULL; \
        return next(path, mode); \
    }
STREAM(fopen)
STREAM(fopen64)

#define TRANSFER(name, label, type, extra, pass) \
    ssize_t name(int file, type data, size_t size extra) { \
        REAL(ssize_t, #name, (int, type, size_t extra)); \
        char buffer[PATH_MAX]; \
        int how = folder[0] && file != log_file ? fails(label, path_of(file, buffer), size > 1) : 0; \
        if (how == 1) return -1; \
        return next(file, data, how == 2 ? size / 2 : size pass); \
    }
#define NOTHING
#define COMMA ,
TRANSFER(write, "write", const void *, NOTHING, NOTHING)
TRANSFER(read, "read", void *, NOTHING, NOTHING)

ssize_t pwrite64(int file, const void *data, size_t size, off64_t place) {
    REAL(ssize_t, "pwrite64", (int, const void *, size_t, off64_t));
    char buffer[PATH_MAX];
    int how = folder[0] ? fails("write", path_of(file, buffer), size > 1) : 0;
    if (how == 1) return -1;
    return next(file, data, how == 2 ? size / 2 : size, place);
}

ssize_t pread64(int file, void *data, size_t size, off64_t place) {
    REAL(ssize_t, "pread64", (int, void *, size_t, off64_t));
    char buffer[PATH_MAX];
    int how = folder[0] ? fails("read", path_of(file, buffer), size > 1) : 0;
    if (how == 1) return -1;
    return next(file, data, how == 2 ? size / 2 : size, place);
}

/* Vectors: `short` leaves only the first half of the first buffer. */
#define VECTOR(name, label, offset_type) \
    ssize_t name(int file, const struct iovec *parts, int number, offset_type place) { \
        REAL(ssize_t, #name, (int, const struct iovec *, int, offset_type)); \
        char buffer[PATH_MAX]; \
        int how = folder[0] ? fails(label, path_of(file, buffer), parts[0].iov_len > 1) : 0; \
        if (how == 1) return -1; \
        struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2}; \
        return how == 2 ? next(file, &half, 1, place) : next(file, parts, number, place); \
    }
VECTOR(preadv, "read", off_t)
VECTOR(preadv64, "read", off64_t)
VECTOR(pwritev, "write", off_t)
VECTOR(pwritev64, "write", off64_t)

ssize_t preadv2(int file, const struct iovec *parts, int number, off_t place, int flags) {
    REAL(ssize_t, "preadv2", (int, const struct iovec *, int, off_t, int));
    ON("read", file);
    return next(file, parts, number, place, flags);
}

ssize_t preadv64v2(int file, const struct iovec *parts, int number, off64_t place, int flags) {
    REAL(ssize_t, "preadv64v2", (int, const struct iovec *, int, off64_t, int));
    ON("read", file);
    return next(file, parts, number, place, flags);
}

ssize_t writev(int file, const struct iovec *parts, int number) {
    REAL(ssize_t, "writev", (int, const struct iovec *, int));
    ON("write", file);
    return next(file, parts, number);
}

int fsync(int file) { REAL(int, "fsync", (int)); ON("fsync", file); return next(file); }
int fdatasync(int file) { REAL(int, "fdatasync", (int)); ON("fsync", file); return next(file); }
int ftruncate(int file, off_t size) { REAL(int, "ftruncate", (int, off_t)); ON("truncate", file); return next(file, size); }
int ftruncate64(int file, off64_t size) { REAL(int, "ftruncate64", (int, off64_t)); ON("truncate", file); return next(file, size); }
int flock(int file, int how) { REAL(int, "flock", (int, int)); ON("flock", file); return next(file, how); }
int fchmod(int file, mode_t mode) { REAL(int, "fchmod", (int, mode_t)); ON("chmod", file); return next(file, mode); }
int chmod(const char *path, mode_t mode) { REAL(int, "chmod", (const char *, mode_t)); AT("chmod", AT_FDCWD, path); return next(path, mode); }
int mkdir(const char *path, mode_t mode) { REAL(int, "mkdir", (const char *, mode_t)); AT("mkdir", AT_FDCWD, path); return next(path, mode); }
int rmdir(const char *path) { REAL(int, "rmdir", (const char *)); AT("rmdir", AT_FDCWD, path); return next(path); }
int unlink(const char *path) { REAL(int, "unlink", (const char *)); AT("unlink", AT_FDCWD, path); return next(path); }
int unlinkat(int directory, const char *path, int flags) {
    REAL(int, "unlinkat", (int, const char *, int));
    AT("unlink", directory, path);
    return next(directory, path, flags);
}
int rename(const char *from, const char *to) {
    REAL(int, "rename", (const char *, const char *));
    AT("rename", AT_FDCWD, from);
    return next(from, to);
}
int renameat(int one, const char *from, int two, const char *to) {
    REAL(int, "renameat", (int, const char *, int, const char *));
    AT("rename", one, from);
    return next(one, from, two, to);
}

#define STAT(name, structure) \
    int name(const char *path, struct structure *found) { \
        REAL(int, #name, (const char *, struct structure *)); \
        AT("stat", AT_FDCWD, path); \
        return next(path, found); \
    }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
#define FSTAT(name, structure) \
    int name(int file, struct structure *found) { \
        REAL(int, #name, (int, struct structure *)); \
        ON("stat", file); \
        return next(file, found); \
    }
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)
#define STATAT(name, structure) \
    int name(int directory, const char *path, struct structure *found, int flags) { \
        REAL(int, #name, (int, const char *, struct structure *, int)); \
        AT("stat", directory, path); \
        return next(directory, path, found, flags); \
    }
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)
int statx(int directory, const char *restrict path, int flags, unsigned int mask, struct statx *restrict found) {
    REAL(int, "statx", (int, const char *, int, unsigned int, struct statx *));
    AT("stat", directory, path);
    return next(directory, path, flags, mask, found);
}

DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", (const char *));
    char buffer[PATH_MAX];
    if (folder[0] && fails("opendir", resolved(AT_FDCWD, path, buffer), 0)) return NULL;
    return next(path);
}
DIR *fdopendir(int file) {
    REAL(DIR *, "fdopendir", (int));
    char buffer[PATH_MAX];
    if (folder[0] && fails("opendir", path_of(file, buffer), 0)) return NULL;
    return next(file);
}

#define MAP(name, offset_type) \
    void *name(void *address, size_t size, int protection, int flags, int file, offset_type place) { \
        static void *(*next)(void *, size_t, int, int, int, offset_type); \
        if (!next) next = (void *(*)(void *, size_t, int, int, int, offset_type))real(#name); \
        char buffer[PATH_MAX]; \
        if (file >= 0 && folder[0] && fails("mmap", path_of(file, buffer), 0)) return MAP_FAILED; \
        return next(address, size, protection, flags, file, place); \
    }
MAP(mmap, off_t)
MAP(mmap64, off64_t)
