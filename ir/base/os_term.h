/* What a command asks of the operating system about its terminal and about paths that it was given. */
#ifndef IR_BASE_OS_TERM_H
#define IR_BASE_OS_TERM_H

#include <stdbool.h>
#include <stdio.h>

bool os_is_terminal(FILE *stream);
int os_terminal_width(FILE *stream); /* columns; 0: no terminal, or it does not say */

bool os_path_exists(const char *path); /* a dangling symbolic link does, too */
bool os_is_folder(const char *path);   /* through links */

/* A write to a closed pipe ends the process the usual way again, even where whoever started it had switched that off. */
void os_end_on_closed_pipe(void);

#endif
