// TLS and WebSocket as a load generator needs them: as common clients behave, and no more.
//
// - The broker's certificate is not looked at, and no session is resumed: each connection is a full handshake.
// - Each send is one binary frame, masked [RFC 6455 5.3], that holds all that was to be sent.
// - Neither is said good-bye to: a client leaves with MQTT's DISCONNECT and closes its socket.
// Without WITH_TLS it needs no library, and knows only tcp and ws.
#include "transport.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

enum { MOST_HEAD = 14, MOST_REPLY = 1024, BINARY = 2, CLOSE = 8, FINAL = 0x80, MASKED = 0x80 };
enum { TWO_BYTES = 126, EIGHT_BYTES = 127 };  // in place of a frame's size: it follows, in so many bytes

static const char UPGRADE[] =
    "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: d2VpciBsb2FkIGNsaWVudA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";

typedef struct WebSocket {
  char reply[MOST_REPLY];  // of the HTTP server, to our upgrade
  size_t reply_size;
  // Outbound: one frame that has not left completely, and how many of the caller's bytes are in it.
  uint8_t* frame;
  size_t frame_size, frame_room, frame_sent, frame_holds;
  // Inbound: the head of the current frame, as much of it as has come, and what is still to come after it.
  uint8_t head[MOST_HEAD];
  size_t head_size;
  uint64_t payload_left;
  int closed;
} WebSocket;

static int with_tls, with_web;

static void give_up(const char* what) {
  fprintf(stderr, "transport: %s\n", what);
  exit(2);
}

// TLS, or the bare socket under a WebSocket.

#ifdef WITH_TLS
static SSL_CTX* context;

static void prepare_tls(void) {
  context = SSL_CTX_new(TLS_client_method());
  if (!context) give_up("OpenSSL does not start");
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);  // thousands of idle clients
  SSL_CTX_set_read_ahead(context, 1);                   // a head and its record in one system call
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
}

static void begin_tls(Stream* s) {
  s->tls = SSL_new(context);
  if (!s->tls || !SSL_set_fd(s->tls, s->fd)) give_up("OpenSSL has no room for a connection");
  SSL_set_connect_state(s->tls);
}

// What SSL_read, SSL_write or SSL_do_handshake has returned, as a socket would say it.
static ssize_t as_socket(SSL* tls, int result) {
  if (result > 0) return result;
  switch (SSL_get_error(tls, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    case SSL_ERROR_SYSCALL: return -1;
    default:
      ERR_print_errors_fp(stderr);
      errno = EPROTO;
      return -1;
  }
}

static ssize_t shake_hands(Stream* s) { return as_socket(s->tls, SSL_do_handshake(s->tls)); }

static ssize_t tls_send(Stream* s, const uint8_t* data, size_t size) {
  ssize_t sent = as_socket(s->tls, SSL_write(s->tls, data, size));
  if (!sent) errno = EPIPE;
  return sent ? sent : -1;
}

static ssize_t tls_receive(Stream* s, uint8_t* data, size_t size) {
  return as_socket(s->tls, SSL_read(s->tls, data, size));
}

int stream_holds_tls(Stream* s) { return SSL_has_pending(s->tls); }

static void end_tls(Stream* s) { SSL_free(s->tls); }

#else
static void prepare_tls(void) { give_up("made without OpenSSL, so there is no tls and no wss: install libssl-dev"); }
static void begin_tls(Stream* s) { (void)s; }
static ssize_t shake_hands(Stream* s) { return (void)s, 1; }
static ssize_t tls_send(Stream* s, const uint8_t* data, size_t size) { return (void)s, (void)data, (ssize_t)size; }
static ssize_t tls_receive(Stream* s, uint8_t* data, size_t size) { return (void)s, (void)data, (void)size, 0; }
int stream_holds_tls(Stream* s) { return (void)s, 0; }
static void end_tls(Stream* s) { (void)s; }
#endif

static ssize_t lower_send(Stream* s, const uint8_t* data, size_t size) {
  return s->tls ? tls_send(s, data, size) : send(s->fd, data, size, MSG_NOSIGNAL);
}

static ssize_t lower_receive(Stream* s, uint8_t* data, size_t size) {
  return s->tls ? tls_receive(s, data, size) : recv(s->fd, data, size, 0);
}

// WebSocket, above either.

static void begin_web(Stream* s) {
  s->web = calloc(1, sizeof *s->web);
  if (!s->web) give_up("no memory");
}

// 1 when the server has agreed, 0 when its answer is not all there.
static int upgraded(Stream* s) {
  WebSocket* w = s->web;
  size_t room = sizeof w->reply - 1 - w->reply_size;
  ssize_t n = lower_receive(s, (uint8_t*)w->reply + w->reply_size, room);
  if (n < 0 && errno == EAGAIN) return 0;
  if (n <= 0) give_up("the broker closed instead of upgrading to WebSocket");
  w->reply_size += n;
  const char* end = strstr(w->reply, "\r\n\r\n");
  if (!end) return 0;
  if (strncmp(w->reply, "HTTP/1.1 101 ", 13)) give_up(w->reply);
  if (end + 4 != w->reply + w->reply_size) give_up("the broker spoke before the client did");
  return 1;
}

static void make_frame(WebSocket* w, const uint8_t* data, size_t size) {
  static uint32_t key = 2463534242u;  // hard to guess is what a browser's must be; ours must only not be zero
  key ^= key << 13, key ^= key >> 17, key ^= key << 5;
  if (w->frame_room < size + MOST_HEAD) {
    w->frame_room = size + MOST_HEAD;
    w->frame = realloc(w->frame, w->frame_room);
    if (!w->frame) give_up("no memory");
  }
  uint8_t* to = w->frame;
  int size_bytes = size < TWO_BYTES ? 0 : size < 1 << 16 ? 2 : 8;
  *to++ = FINAL | BINARY;
  *to++ = MASKED | (size_bytes == 0 ? size : size_bytes == 2 ? TWO_BYTES : EIGHT_BYTES);
  for (int i = size_bytes; i-- > 0;) *to++ = (uint64_t)size >> (8 * i);
  uint8_t* mask = to;
  memcpy(mask, &key, 4);
  to += 4;
  for (size_t i = 0; i < size; i++) *to++ = data[i] ^ mask[i & 3];
  w->frame_size = to - w->frame;
  w->frame_sent = 0;
  w->frame_holds = size;
}

static ssize_t web_send(Stream* s, const uint8_t* data, size_t size) {
  WebSocket* w = s->web;
  if (!w->frame_holds) make_frame(w, data, size);
  while (w->frame_sent < w->frame_size) {
    ssize_t n = lower_send(s, w->frame + w->frame_sent, w->frame_size - w->frame_sent);
    if (n < 0) return -1;
    w->frame_sent += n;
  }
  size_t held = w->frame_holds;
  w->frame_holds = 0;
  return held;
}

// How long the head is of which *have* bytes are there: more than *have* while it is not complete.
static size_t head_length(const uint8_t* head, size_t have) {
  if (have < 2) return 2;
  if (head[1] & MASKED) give_up("the broker masks its frames");
  return head[1] == TWO_BYTES ? 4 : head[1] == EIGHT_BYTES ? 10 : 2;
}

// The head is complete: how much payload follows.
static void begin_payload(WebSocket* w) {
  int opcode = w->head[0] & 15;
  if (opcode == CLOSE) w->closed = 1;
  if (opcode > CLOSE) give_up("the broker sends pings, which this client does not answer");
  w->payload_left = w->head[1];
  if (w->head_size > 2) {
    w->payload_left = 0;
    for (size_t i = 2; i < w->head_size; i++) w->payload_left = w->payload_left << 8 | w->head[i];
  }
  w->head_size = 0;
}

// Move the payloads together that are among these bytes; their size. Frames may be cut anywhere.
static size_t unframe(WebSocket* w, uint8_t* data, size_t size) {
  size_t from = 0, to = 0;
  while (from < size && !w->closed) {
    if (w->payload_left) {
      size_t n = w->payload_left < size - from ? w->payload_left : size - from;
      memmove(data + to, data + from, n);
      from += n, to += n, w->payload_left -= n;
    } else {
      w->head[w->head_size++] = data[from++];
      if (w->head_size == head_length(w->head, w->head_size)) begin_payload(w);
    }
  }
  return to;
}

// What transport.h promises.

void choose_transport(const char* name) {
  with_tls = !strcmp(name, "tls") || !strcmp(name, "wss");
  with_web = !strcmp(name, "ws") || !strcmp(name, "wss");
  if (!with_tls && !with_web && strcmp(name, "tcp")) give_up("--transport is tcp, tls, ws or wss");
  if (with_tls) prepare_tls();
  signal(SIGPIPE, SIG_IGN);  // OpenSSL has no MSG_NOSIGNAL
}

void stream_begin(Stream* s, int fd) {
  *s = (Stream){.fd = fd, .stage = with_tls ? SHAKING_HANDS : with_web ? ASKING_TO_UPGRADE : OPEN};
  if (with_tls) begin_tls(s);
  if (with_web) begin_web(s);
}

int stream_open(Stream* s) {
  if (s->stage == SHAKING_HANDS) {
    ssize_t n = shake_hands(s);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n <= 0) give_up("the TLS handshake failed");
    s->stage = with_web ? ASKING_TO_UPGRADE : OPEN;
  }
  if (s->stage == ASKING_TO_UPGRADE) {
    if (lower_send(s, (const uint8_t*)UPGRADE, sizeof UPGRADE - 1) != sizeof UPGRADE - 1) give_up("cannot send");
    s->stage = AWAITING_UPGRADE;
  }
  if (s->stage == AWAITING_UPGRADE && upgraded(s)) s->stage = OPEN;
  return s->stage == OPEN;
}

ssize_t stream_send_wrapped(Stream* s, const uint8_t* data, size_t size) {
  return s->web ? web_send(s, data, size) : tls_send(s, data, size);
}

ssize_t stream_receive_wrapped(Stream* s, uint8_t* data, size_t size) {
  WebSocket* w = s->web;
  ssize_t n;
  do {
    n = lower_receive(s, data, size);
    if (n <= 0 || !w) return n;
    n = unframe(w, data, n);
  } while (!n && !w->closed);  // a head without payload is not the end
  return n;
}

void stream_close(Stream* s) {
  if (s->tls) end_tls(s);
  if (s->web) free(s->web->frame);
  free(s->web);
  close(s->fd);
}
