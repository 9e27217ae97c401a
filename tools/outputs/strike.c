/* Loaded before libc (LD_PRELOAD) into a driver, its JVM and its Python workers: the changes of files below one folder are
   counted, and from a given one on they fail. So a process can be killed, or its disk can be full, at any change, whoever does
   it: Java, Python, Rust, SQLite. A worker dies by SIGKILL. The driver and the JVM live on, and change no file any more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OFF, KILL, FULL };
static struct state { int mode, at, dead, done; char what[16], path[480]; } *state; /* strikes.py has the same */
static const char *root;
static size_t length;
static pid_t driver;
static int java;
static unsigned char ours[65536]; /* files below the folder that are open for writing, by descriptor */

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define IS_OURS(fd) ((fd) >= 0 && (fd) < (int)sizeof ours && ours[fd])

__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("OUTPUTS_STATE"), *pid = getenv("OUTPUTS_DRIVER");
  char exe[4096];
  root = getenv("OUTPUTS_ROOT");
  if (!file || !root || !pid) return;
  length = strlen(root), driver = atoi(pid);
  ssize_t size = readlink("/proc/self/exe", exe, sizeof exe);
  java = size > 5 && !memcmp(exe + size - 5, "/java", 5);
  REAL(open);
  void *at = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, real(file, O_RDWR), 0);
  if (at != MAP_FAILED) state = at;
}

/* Whether this change must fail. path: NULL for an open file below the folder; grows: whether the change needs space. */
static int fails(const char *what, const char *path, int grows) {
  if (!state || !state->mode || (path && strncmp(path, root, length))) return 0;
  if (!state->dead && __sync_add_and_fetch(&state->done, 1) == state->at) {
    strncpy(state->what, what, sizeof state->what - 1);
    strncpy(state->path, path ? path : "", sizeof state->path - 1);
    state->dead = 1;
  }
  if (!state->dead || (state->mode == FULL && !grows)) return 0;
  if (state->mode == KILL && !java && getpid() != driver) kill(getpid(), SIGKILL);
  errno = state->mode == FULL ? ENOSPC : EIO;
  return 1;
}

#define OPEN(name, parameters, ...)                                               \
  int name(parameters const char *path, int flags, ...) {                         \
    REAL(name);                                                                   \
    va_list more;                                                                 \
    va_start(more, flags);                                                        \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;       \
    va_end(more);                                                                 \
    if (flags & (O_CREAT | O_TRUNC) && fails("open", path, 1)) return -1;         \
    int fd = real(__VA_ARGS__);                                                   \
    if (fd >= 0 && fd < (int)sizeof ours)                                         \
      ours[fd] = root && (flags & O_ACCMODE) && !strncmp(path, root, length);     \
    return fd;                                                                    \
  }
#define FOLDER int folder,
OPEN(open, , path, flags, mode)
OPEN(open64, , path, flags, mode)
OPEN(openat, FOLDER, folder, path, flags, mode)
OPEN(openat64, FOLDER, folder, path, flags, mode)

#define CHANGE(type, name, parameters, arguments, path, grows) \
  type name parameters {                                       \
    REAL(name);                                                \
    if (fails(#name, path, grows)) return -1;                  \
    return real arguments;                                     \
  }
CHANGE(int, rename, (const char *from, const char *to), (from, to), to, 0)
CHANGE(int, link, (const char *from, const char *to), (from, to), to, 0)
CHANGE(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), to, 0)
CHANGE(int, unlink, (const char *path), (path), path, 0)
CHANGE(int, remove, (const char *path), (path), path, 0)
CHANGE(int, rmdir, (const char *path), (path), path, 0)
CHANGE(int, mkdir, (const char *path, mode_t mode), (path, mode), path, 1)

ssize_t write(int fd, const void *bytes, size_t size) {
  REAL(write);
  if (IS_OURS(fd) && state && state->mode) {
    if (!state->dead && state->done + 1 == state->at && size > 1) real(fd, bytes, size / 2); /* the file is cut short */
    if (fails("write", NULL, 1)) return -1;
  }
  return real(fd, bytes, size);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, __off64_t offset) {
  REAL(pwrite64);
  return IS_OURS(fd) && fails("pwrite", NULL, 1) ? -1 : real(fd, bytes, size, offset);
}

int close(int fd) {
  REAL(close);
  if (fd >= 0 && fd < (int)sizeof ours) ours[fd] = 0;
  return real(fd);
}
