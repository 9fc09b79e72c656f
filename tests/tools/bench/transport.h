// How the bytes of one client travel: over TCP, TLS, WebSocket, or WebSocket in TLS, chosen once for the program.
// Over TCP a stream is its socket and costs what the socket costs; all else is in transport.c.
//
// Sending and receiving mean what they mean of a socket: bytes, 0 at the end, or -1 with errno (EAGAIN: not now).
// Two differences, for who uses them:
// - After EAGAIN, send the same bytes again; others may follow them. (A WebSocket frame leaves as a whole or not yet.)
// - stream_holds() tells that more was received than was asked for: no epoll will say so.
#ifndef TRANSPORT_H
#define TRANSPORT_H
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

typedef enum Stage { SHAKING_HANDS, ASKING_TO_UPGRADE, AWAITING_UPGRADE, OPEN } Stage;

typedef struct Stream {
  int fd;
  Stage stage;
  struct ssl_st* tls;     // null without TLS
  struct WebSocket* web;  // null without WebSocket
} Stream;

// Over "tcp", "tls", "ws" or "wss". Ends the program with a sentence when it cannot.
void choose_transport(const char* name);

// Make a stream of a connected socket that does not block. MQTT may begin when stream_open() has returned 1; 0 means:
// call it again once the socket is readable. Ends the program when the broker refuses.
void stream_begin(Stream* s, int fd);
int stream_open(Stream* s);

ssize_t stream_send_wrapped(Stream* s, const uint8_t* data, size_t size);
ssize_t stream_receive_wrapped(Stream* s, uint8_t* data, size_t size);
int stream_holds_tls(Stream* s);
void stream_close(Stream* s);

static inline int stream_is_bare(const Stream* s) { return !s->tls && !s->web; }

static inline ssize_t stream_send(Stream* s, const uint8_t* data, size_t size) {
  return stream_is_bare(s) ? send(s->fd, data, size, MSG_NOSIGNAL) : stream_send_wrapped(s, data, size);
}

static inline ssize_t stream_receive(Stream* s, uint8_t* data, size_t size) {
  return stream_is_bare(s) ? recv(s->fd, data, size, 0) : stream_receive_wrapped(s, data, size);
}

static inline int stream_holds(Stream* s) { return s->tls && stream_holds_tls(s); }
#endif
