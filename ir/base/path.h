/* Paths as texts. */
#ifndef IR_BASE_PATH_H
#define IR_BASE_PATH_H

#include <string.h>

/* What is behind the last slash: all that messages say of where something lies. "" for NULL. */
static inline const char *path_name(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "";
}

#endif
