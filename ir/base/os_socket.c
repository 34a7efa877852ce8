/* Connections by TCP. */
#include "ir/base/os_socket.h"
#include "ir/base/os.h"
#include "ir/base/os_fd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECT_MS = 2000, FEW_MS = 20 };

static int make(const struct addrinfo *a, int flags)
{
    OsLow low;
    os_low_hold(&low);
    int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    os_low_release(&low);
    return s;
}

static void drop(int *s)
{
    int error = errno;
    close(*s);
    *s = -1;
    errno = error;
}

static int port_of(const struct sockaddr_storage *name)
{
    const struct sockaddr_in *v4 = (const void *)name;
    const struct sockaddr_in6 *v6 = (const void *)name;
    return ntohs(name->ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

int os_socket_listen(const char *host, const char *port, int *bound)
{
    const struct addrinfo hints = {.ai_family = host ? AF_UNSPEC : AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    int s = -1;
    if (getaddrinfo(host, port, &hints, &found) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    for (const struct addrinfo *a = found; a && s < 0; a = a->ai_next) {
        struct sockaddr_storage name;
        socklen_t size = sizeof name;
        if ((s = make(a, 0)) < 0)
            continue;
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
        if (bind(s, a->ai_addr, a->ai_addrlen) != 0 || listen(s, SOMAXCONN) != 0 || getsockname(s, (struct sockaddr *)&name, &size) != 0)
            drop(&s);
        else
            *bound = port_of(&name);
    }
    freeaddrinfo(found);
    return s;
}

int os_socket_connect(const char *host, const char *port)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int s = -1;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    for (const struct addrinfo *a = found; a && s < 0; a = a->ai_next) {
        if ((s = make(a, SOCK_NONBLOCK)) < 0)
            continue;
        struct pollfd wait = {.fd = s, .events = POLLOUT};
        int error = connect(s, a->ai_addr, a->ai_addrlen) != 0 ? errno : 0;
        socklen_t size = sizeof error;
        if (error == EINPROGRESS && (poll(&wait, 1, CONNECT_MS) != 1 || getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size) != 0))
            error = ETIMEDOUT;
        if (error)
            drop(&s);
    }
    freeaddrinfo(found);
    return s;
}

int os_socket_accept(int listening, double seconds)
{
    OsLow low;
    if (poll(&(struct pollfd){.fd = listening, .events = POLLIN}, 1, (int)(seconds * 1e3)) != 1)
        return -1;
    os_low_hold(&low);
    int s = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    os_low_release(&low);
    return s;
}

void os_socket_close(int s) { close(s); }

void os_socket_eager(int s) { setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)); }

bool os_socket_peer(int s, char address[OS_ADDRESS])
{
    struct sockaddr_storage name;
    socklen_t size = sizeof name;
    return getpeername(s, (struct sockaddr *)&name, &size) == 0 &&
           getnameinfo((struct sockaddr *)&name, size, address, OS_ADDRESS, NULL, 0, NI_NUMERICHOST) == 0;
}

size_t os_socket_own(char (*address)[OS_ADDRESS], size_t room)
{
    struct ifaddrs *list = NULL;
    size_t n = 0;
    if (getifaddrs(&list) != 0)
        return 0;
    for (int own = 0; own < 2; own++)
        for (const struct ifaddrs *i = list; i && n < room; i = i->ifa_next)
            if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && !(i->ifa_flags & IFF_LOOPBACK) == !own &&
                getnameinfo(i->ifa_addr, sizeof(struct sockaddr_in), address[n], OS_ADDRESS, NULL, 0, NI_NUMERICHOST) == 0)
                n++;
    freeifaddrs(list);
    return n;
}

/* 0: later. */
static ptrdiff_t some(ptrdiff_t n) { return n > 0 ? n : n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1; }

ptrdiff_t os_socket_send_some(int s, const void *from, size_t bytes) { return some(send(s, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)); }

ptrdiff_t os_socket_receive_some(int s, void *to, size_t bytes) { return some(recv(s, to, bytes, MSG_DONTWAIT)); }

bool os_socket_send(int s, const void *from, size_t bytes, double due)
{
    for (size_t at = 0; at < bytes;) {
        ptrdiff_t n = os_socket_send_some(s, (const char *)from + at, bytes - at);
        if (n < 0 || (n == 0 && os_seconds() > due))
            return false;
        at += (size_t)n;
        if (n == 0)
            poll(&(struct pollfd){.fd = s, .events = POLLOUT}, 1, FEW_MS);
    }
    return true;
}

bool os_socket_receive(int s, void *to, size_t bytes, double due)
{
    for (size_t at = 0; at < bytes;) {
        ptrdiff_t n = os_socket_receive_some(s, (char *)to + at, bytes - at);
        if (n < 0 || (n == 0 && os_seconds() > due))
            return false;
        at += (size_t)n;
        if (n == 0)
            poll(&(struct pollfd){.fd = s, .events = POLLIN}, 1, FEW_MS);
    }
    return true;
}
