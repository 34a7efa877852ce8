/* pty COLUMNS INPUT PROGRAM ARGS...: runs a program on a terminal of so many columns, types INPUT,
 * and prints what it prints. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static int start(const char *terminal, int columns, char **command)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    setsid();
    int tty = open(terminal, O_RDWR);
    struct winsize size = {.ws_row = 25, .ws_col = (unsigned short)columns};
    if (tty < 0 || ioctl(tty, TIOCSCTTY, 0) != 0 || ioctl(tty, TIOCSWINSZ, &size) != 0)
        _exit(126);
    dup2(tty, 0);
    dup2(tty, 1);
    dup2(tty, 2);
    execv(command[0], command);
    _exit(127);
}

/* Copies what is there, without the carriage returns of the terminal. */
static bool copy(int master)
{
    char buffer[4096];
    ssize_t n = read(master, buffer, sizeof buffer);
    for (ssize_t i = 0; i < n; i++)
        if (buffer[i] != '\r')
            putchar(buffer[i]);
    return n > 0;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        fprintf(stderr, "pty: no pseudo terminal: %s\n", strerror(errno));
        return 77;
    }
    char terminal[128];
    if (ptsname_r(master, terminal, sizeof terminal) != 0)
        return 77;
    int held = open(terminal, O_RDWR | O_NOCTTY); /* so that reading waits for the child to open it */
    struct termios mode;
    if (tcgetattr(held, &mode) == 0) { /* what is typed stands in the midst of what is printed otherwise */
        mode.c_lflag &= ~(tcflag_t)ECHO;
        (void)tcsetattr(held, TCSANOW, &mode);
    }
    pid_t child = start(terminal, atoi(argv[1]), argv + 3);
    if (*argv[2] && write(master, argv[2], strlen(argv[2])) < 0)
        return 1;
    int status = 0;
    for (bool ended = false; !ended;) { /* once more after its end: what is left in the terminal */
        struct pollfd ready = {.fd = master, .events = POLLIN};
        ended = waitpid(child, &status, WNOHANG) == child;
        while (poll(&ready, 1, ended ? 0 : 20) == 1 && copy(master))
            ;
    }
    close(held);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
