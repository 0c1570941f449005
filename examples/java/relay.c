// The minimum cost of a server in between: passes bytes between each client and a backend without parsing them,
// with recv and send or with splice, which copies none of them.
//   relay PORT BACKEND_PORT copy|splice      on loopback, a process for each client
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE = 128 * 1024, PIPE = 1024 * 1024 };

struct way {
    int from, to, pipe[2];
    size_t held, sent;
    char bytes[PIECE];
};

static ssize_t take(struct way *way, int splices) {
    if (splices)
        return splice(way->from, 0, way->pipe[1], 0, PIECE, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    return recv(way->from, way->bytes, PIECE, 0);
}

static ssize_t give(struct way *way, int splices) {
    size_t left = way->held - way->sent;
    if (splices)
        return splice(way->pipe[0], 0, way->to, 0, left, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    return send(way->to, way->bytes + way->sent, left, MSG_NOSIGNAL);
}

// Passes on the available bytes; returns 0 if one side has ended.
static int pass(struct way *way, int splices) {
    for (;;) {
        ssize_t count;
        if (way->sent == way->held) {
            if ((count = take(way, splices)) <= 0) return count < 0 && errno == EAGAIN;
            way->held = count, way->sent = 0;
        }
        if ((count = give(way, splices)) < 0) return errno == EAGAIN;
        way->sent += count;
    }
}

static void relay(int client, int backend, int splices) {
    static struct way up, down;
    struct way *ways[] = {&up, &down};
    int sockets[] = {client, backend}, on = 1, queue = epoll_create1(0);
    for (int i = 0; i < 2; i++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP};
        fcntl(sockets[i], F_SETFL, O_NONBLOCK);
        setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        epoll_ctl(queue, EPOLL_CTL_ADD, sockets[i], &event);
        ways[i]->from = sockets[i], ways[i]->to = sockets[!i], ways[i]->held = ways[i]->sent = 0;
        if (pipe2(ways[i]->pipe, O_NONBLOCK) < 0) exit(1);
        fcntl(ways[i]->pipe[1], F_SETPIPE_SZ, PIPE);
    }
    while (pass(&up, splices) && pass(&down, splices)) {
        struct epoll_event events[4];
        epoll_wait(queue, events, 4, -1);
    }
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: relay PORT BACKEND_PORT copy|splice\n");
        return 2;
    }
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct sockaddr_in there = here;
    there.sin_port = htons(atoi(arguments[2]));
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&here, sizeof here) || listen(listener, 8)) return perror("relay"), 1;
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int client = accept(listener, 0, 0);
        if (client < 0) return perror("relay"), 1;
        if (fork() == 0) {
            int backend = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(backend, (void *)&there, sizeof there)) return perror("relay"), 1;
            relay(client, backend, strcmp(arguments[3], "splice") == 0);
            return 0;
        }
        close(client);
    }
}
