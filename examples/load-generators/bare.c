/* A bare client over epoll: it sends the next request as soon as a reply arrives, and measures nothing. Its CPU time
 * is almost only that of the kernel, so it is a lower bound for any load generator with these system calls. One
 * thread, edge-triggered, one recv and one send for each event.
 *   cc -O2 -o bare bare.c && ./bare PORT PATH CONNECTIONS STREAMS SECONDS
 * With 0 streams, it uses HTTP/1.1, and each event counts as one reply. Otherwise, it uses HTTP/2 without TLS, and
 * reads only the headers of frames. It prints the number of replies and the rate.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 1024
#define MOST_STREAMS 256
#define FRAME_HEADER 9
#define HEADERS 1
#define SETTINGS 4
#define END_STREAM 1
#define SEND_BYTES 65536

struct connection {
    int socket;
    uint32_t next_stream;
    size_t skip;        /* bytes of the payload that are still to come */
    size_t header_read; /* bytes of `header` that have arrived */
    uint8_t header[FRAME_HEADER];
};

static char request[512]; /* the request; over HTTP/2, a HEADERS frame */
static size_t request_length;
static uint8_t received[256 * 1024], to_send[SEND_BYTES];
static uint64_t replies;

static void fail(const char *message)
{
    perror(message);
    exit(1);
}

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void send_all(int socket, const void *bytes, size_t length)
{
    if (send(socket, bytes, length, MSG_NOSIGNAL) != (ssize_t)length)
        fail("send");
}

static void put_u32(uint8_t *at, uint32_t value)
{
    value = htonl(value);
    memcpy(at, &value, 4);
}

static void prepare_request(int port, const char *path, int is_http2)
{
    char host[32];
    snprintf(host, sizeof host, "127.0.0.1:%d", port);
    if (strlen(path) > 100) {
        fprintf(stderr, "the path has more than 100 bytes\n");
        exit(2);
    }
    if (!is_http2) {
        request_length = (size_t)snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host);
        return;
    }
    /* HPACK (RFC 7541): the indexed fields `:method: GET` and `:scheme: http`, and two literals without indexing. */
    char *at = request + FRAME_HEADER;
    *at++ = (char)0x82;
    *at++ = (char)0x86;
    at += sprintf(at, "%c%c%s", 4, (int)strlen(path), path);
    at += sprintf(at, "%c%c%s", 1, (int)strlen(host), host);
    request_length = (size_t)(at - request);
    request[2] = (char)(request_length - FRAME_HEADER);
    request[3] = HEADERS;
    request[4] = 0x5; /* END_STREAM and END_HEADERS */
}

/* Appends a request on a new stream at `at`. Returns the end. */
static uint8_t *append_request(struct connection *connection, uint8_t *at)
{
    memcpy(at, request, request_length);
    put_u32(at + 5, connection->next_stream);
    connection->next_stream += 2;
    return at + request_length;
}

static void start(struct connection *connection, int port, int streams)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connection->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (connection->socket < 0 || connect(connection->socket, (struct sockaddr *)&address, sizeof address))
        fail("connect");
    setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!streams) {
        send_all(connection->socket, request, request_length);
        return;
    }
    /* The largest windows for streams and for the connection, so that no further WINDOW_UPDATE is necessary. */
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                                  "\0\0\6\4\0\0\0\0\0\0\4\x7f\xff\xff\xff"
                                  "\0\0\4\x8\0\0\0\0\0\x7f\xff\0\0";
    memcpy(to_send, preface, sizeof preface - 1);
    uint8_t *end = to_send + sizeof preface - 1;
    connection->next_stream = 1;
    while (streams--)
        end = append_request(connection, end);
    send_all(connection->socket, to_send, (size_t)(end - to_send));
}

/* Reads the headers of frames. Sends a request for each stream that ended, and confirms SETTINGS. */
static void read_frames(struct connection *connection, const uint8_t *at, const uint8_t *end)
{
    uint8_t *out = to_send, *header = connection->header;
    while (at < end) {
        size_t left = (size_t)(end - at);
        if (connection->skip) {
            size_t part = connection->skip < left ? connection->skip : left;
            connection->skip -= part;
            at += part;
            continue;
        }
        header[connection->header_read++] = *at++;
        if (connection->header_read < FRAME_HEADER)
            continue;
        connection->header_read = 0;
        connection->skip = (size_t)header[0] << 16 | (size_t)header[1] << 8 | header[2];
        if (header[3] <= HEADERS && header[4] & END_STREAM) {
            replies++;
            out = append_request(connection, out);
        } else if (header[3] == SETTINGS && !(header[4] & END_STREAM)) {
            memcpy(out, "\0\0\0\4\1\0\0\0\0", FRAME_HEADER);
            out += FRAME_HEADER;
        }
        if (out > to_send + SEND_BYTES - sizeof request) {
            send_all(connection->socket, to_send, (size_t)(out - to_send));
            out = to_send;
        }
    }
    if (out > to_send)
        send_all(connection->socket, to_send, (size_t)(out - to_send));
}

static void receive(struct connection *connection, int streams)
{
    ssize_t length = recv(connection->socket, received, sizeof received, 0);
    if (length <= 0) {
        fprintf(stderr, "the server closed a connection\n");
        exit(1);
    }
    if (streams) {
        read_frames(connection, received, received + length);
        return;
    }
    replies++;
    send_all(connection->socket, request, request_length);
}

int main(int count, char **arguments)
{
    if (count != 6) {
        fprintf(stderr, "bare PORT PATH CONNECTIONS STREAMS SECONDS\n");
        return 2;
    }
    int port = atoi(arguments[1]), connections = atoi(arguments[3]), streams = atoi(arguments[4]);
    double seconds = atof(arguments[5]);
    if (port <= 0 || port > 65535 || connections < 1 || streams < 0 || streams > MOST_STREAMS) {
        fprintf(stderr, "the port, or a number of connections or streams, is out of range\n");
        return 2;
    }
    prepare_request(port, arguments[2], streams > 0);
    struct connection *all = calloc((size_t)connections, sizeof *all);
    int epoll = epoll_create1(0);
    if (!all || epoll < 0)
        fail("epoll_create1");
    double start_s = now_s();
    for (int each = 0; each < connections; each++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = &all[each]};
        start(&all[each], port, streams);
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, all[each].socket, &event))
            fail("epoll_ctl");
    }
    struct epoll_event events[EVENTS];
    while (now_s() - start_s < seconds) {
        int ready = epoll_wait(epoll, events, EVENTS, 100);
        for (int each = 0; each < ready; each++)
            receive(events[each].data.ptr, streams);
    }
    printf("replies: %llu\nrate: %.1f\n", (unsigned long long)replies, (double)replies / (now_s() - start_s));
    return 0;
}
