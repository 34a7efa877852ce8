/* The terminal, and what a path is (POSIX). See os_term.h. */
#include "ir/base/os_term.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

bool os_is_terminal(FILE *stream) { return isatty(fileno(stream)) == 1; }

int os_terminal_width(FILE *stream)
{
    struct winsize size;
    return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool os_path_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

bool os_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

void os_end_on_closed_pipe(void) { signal(SIGPIPE, SIG_DFL); }
