/* A bare loop over epoll that answers each request with the same bytes. The cost of the kernel and the
 * loop is the lower bound for any server. It looks for the end of a head and parses nothing else. One
 * thread, level-triggered, one recv and one send for each event.
 *   cc -O2 -o epoll epoll.c && ./epoll PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS 65536 /* descriptors above are closed at once */
#define EVENTS 512
#define PIPELINED 16 /* replies in one send; the loop closes the connection if more requests arrive at once */

static const char body[] =
    "<!DOCTYPE html><title>A small page</title><h1>A small page</h1><p>It is as long as many answers of small "
    "services are: a few hundred bytes. What it says does not matter, so it says nothing more than this, and then "
    "once more: what it says does not matter.</p>";

static char replies[PIPELINED * 1024];
static size_t reply_length;
/* For each connection, the number of bytes of CR LF CR LF at the end of its input. */
static unsigned char matched[CONNECTIONS];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int listen_at(int port)
{
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0) fail("socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) fail("listen");
    return listener;
}

static void accept_all(int poll, int listener)
{
    for (;;) {
        int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (fd < 0) return;
        if (fd >= CONNECTIONS) {
            close(fd);
            continue;
        }
        matched[fd] = 0;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event)) close(fd);
    }
}

/* Counts the heads that end in the received bytes. */
static size_t count_heads(int fd, const char *data, size_t length)
{
    static const char end[4] = "\r\n\r\n";
    unsigned char seen = matched[fd];
    size_t heads = 0;
    for (size_t i = 0; i < length; i++) {
        if (data[i] == end[seen]) seen++;
        else seen = data[i] == '\r';
        if (seen == 4) {
            heads++;
            seen = 0;
        }
    }
    matched[fd] = seen;
    return heads;
}

static void answer(int fd)
{
    char data[16 * 1024];
    ssize_t length = recv(fd, data, sizeof data, 0);
    size_t heads;
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    heads = length > 0 ? count_heads(fd, data, (size_t)length) : 0;
    /* If the kernel does not accept all at once, the client does not read: close. */
    if (length <= 0 || heads > PIPELINED ||
        (heads && send(fd, replies, heads * reply_length, MSG_NOSIGNAL) != (ssize_t)(heads * reply_length)))
        close(fd);
}

int main(int argc, char **argv)
{
    struct epoll_event events[EVENTS], event = {.events = EPOLLIN};
    int listener = listen_at(argc > 1 ? atoi(argv[1]) : 0), poll = epoll_create1(0);
    reply_length = (size_t)snprintf(replies, 1024,
        "HTTP/1.1 200 OK\r\nServer: epoll\r\nDate: Sun, 22 Nov 2026 12:00:00 GMT\r\nContent-Type: text/html\r\n"
        "Content-Length: %zu\r\n\r\n%s", sizeof body - 1, body);
    for (int i = 1; i < PIPELINED; i++) memcpy(replies + (size_t)i * reply_length, replies, reply_length);
    event.data.fd = listener;
    if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event)) fail("epoll");
    for (;;) {
        int ready = epoll_wait(poll, events, EVENTS, -1);
        if (ready < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd == listener) accept_all(poll, listener);
            else answer(events[i].data.fd);
        }
    }
}
