/* Connections by TCP between processes that know each other (runtime/comm/tcp.c). A socket is closed on exec and none of the first three
 * descriptors. */
#ifndef IR_BASE_OS_SOCKET_H
#define IR_BASE_OS_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

enum { OS_ADDRESS = 46, OS_PORT = 8 }; /* bytes of their texts, with 0 */

/* Listens; host NULL: at all addresses, port "0": any, in *bound. -1: errno. */
int os_socket_listen(const char *host, const char *port, int *bound);
/* -1: nobody listens there. */
int os_socket_connect(const char *host, const char *port);
/* Whoever connects within so many seconds; -1: nobody. */
int os_socket_accept(int listening, double seconds);
void os_socket_close(int s);
/* Small messages are sent at once. */
void os_socket_eager(int s);
/* The other end's address; false: errno. */
bool os_socket_peer(int s, char address[OS_ADDRESS]);
/* Addresses of this machine, those that only it can reach last. How many. */
size_t os_socket_own(char (*address)[OS_ADDRESS], size_t room);

/* All of it; false: the connection ended, or os_seconds() came to `due`. */
bool os_socket_send(int s, const void *from, size_t bytes, double due);
bool os_socket_receive(int s, void *to, size_t bytes, double due);
/* As much as goes without waiting: 0: none now, -1: it ended. */
ptrdiff_t os_socket_send_some(int s, const void *from, size_t bytes);
ptrdiff_t os_socket_receive_some(int s, void *to, size_t bytes);

#endif
