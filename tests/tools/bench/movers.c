// movers: pairs of MQTT 5.0 clients with stored sessions that go where the broker sends them.
//
//   movers --ports FIRST,SECOND --pairs N --rate R
//
// All connect to FIRST; it prints "connected" once every subscriber has its SUBACK. With the first line that it reads the
// publishers begin: R messages a second at QoS 1, in turn, each due at its own time. They stop when standard input ends.
// Then it waits up to PATIENCE seconds until all is acknowledged, and as long until all of that has come.
//
// A client that is told a server reference (0x9C) connects there at once, one whose connection ends without a word to the
// other node AGAIN_S later, and one that is refused to the same one then. A publisher sends again what was not
// acknowledged [MQTT-4.4.0-1], with DUP. Messages are numbered for each pair; nothing is lost if the subscriber has every
// number that was acknowledged.
//
// One JSON line at the end: acknowledged, lost, doubled, open (never acknowledged), moved (by a reference), refused (ends
// without one, by reason code), longest_s (that a client was without a connection).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 18, MOST_EVENTS = 512, STDIN_EVENT = -1, TIMER_EVENT = -2, TICK_NS = 1000000 };
enum { MOST = 65535, NUMBER = 20, EXPIRY_S = 3600, KEEP_ALIVE_S = 600, PATIENCE = 20, ACCEPTED = 0 };
enum { CONNACK = 0x20, PUBLISH = 0x30, PUBACK = 0x40, SUBACK = 0x90, DISCONNECT = 0xE0, AGAIN_S = 1 };
enum { SERVER_REFERENCE = 0x1C };

typedef struct Client {
  int number, fd, port;  // subscribers have the numbers from 0 on, publishers those behind them
  bool connected, subscribed;
  double left;           // when it lost its connection
  uint8_t* rest;         // bytes of a packet that has not come as a whole
  size_t rest_size;
  int sent, first_open;  // of a publisher: numbers from 1 on
  uint8_t* done;         // by number: acknowledged, or has come
  struct Client* next;   // of those that wait to connect again
  double due;
} Client;

static int ports[2], pairs = 1, ep, timer;
static double rate = 1000;
static Client *clients, *waiting, **last_waiting = &waiting;
static long subscribed, acknowledged, doubled, moved, refused[256], sent;
static double longest;

static void fail(const char* what) {
  fprintf(stderr, "movers: %s\n", what);
  exit(2);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static bool publishes(const Client* c) { return c->number >= pairs; }

static void watch(int fd, int64_t what) {
  struct epoll_event e = {.events = EPOLLIN, .data.u64 = (uint64_t)what};
  if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e)) fail("epoll_ctl");
}

// The socket blocks: what the kernel does not take holds up all clients, as little as they send. An end is read.
static void write_all(Client* c, const uint8_t* data, size_t size) {
  for (ssize_t n; size; data += n, size -= n)
    if ((n = send(c->fd, data, size, MSG_NOSIGNAL)) < 0) return;
}

static void connect_to(Client* c, int port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int one = 1;
  c->port = port;
  c->rest_size = 0;
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (c->fd < 0 || connect(c->fd, (void*)&to, sizeof to)) fail("cannot connect");
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  watch(c->fd, c->number);
  uint8_t p[64] = {0x10, 0, 0, 4, 'M', 'Q', 'T', 'T', 5, 0, KEEP_ALIVE_S >> 8, KEEP_ALIVE_S & 255,
                   5, 0x11, 0, 0, EXPIRY_S >> 8, EXPIRY_S & 255, 0};
  int n = snprintf((char*)p + 20, 40, "%s-%d", publishes(c) ? "publisher" : "subscriber", c->number % pairs);
  p[19] = n;
  p[1] = 18 + n;
  write_all(c, p, 20 + n);
}

static void leave(Client* c, int port, double pause) {
  if (c->connected) c->left = now();
  c->connected = false;
  close(c->fd);  // epoll forgets it
  if (!pause) {
    connect_to(c, port);
    return;
  }
  c->port = port;
  c->due = now() + pause;
  c->next = NULL;
  *last_waiting = c;
  last_waiting = &c->next;
}

static void return_those_due(void) {
  while (waiting && waiting->due <= now()) {
    Client* c = waiting;
    waiting = c->next;
    if (!waiting) last_waiting = &waiting;
    connect_to(c, c->port);
  }
}

static int other_port(int port) { return ports[port == ports[0]]; }

static size_t topic_of(const Client* c, uint8_t* p) {
  int n = snprintf((char*)p + 2, 24, "drain/%d", c->number % pairs);
  p[0] = 0;
  p[1] = n;
  return 2 + n;
}

static void publish(Client* c, int number, int duplicate) {
  uint8_t p[80] = {0x32 | duplicate << 3, 0};
  size_t size = 2 + topic_of(c, p + 2);
  p[size++] = number >> 8;
  p[size++] = number;
  p[size++] = 0;
  size += snprintf((char*)p + size, NUMBER + 1, "%0*d", NUMBER, number);
  p[1] = size - 2;
  write_all(c, p, size);
}

static void publish_next(Client* c) {
  if (++c->sent > MOST) fail("more messages than packet ids");
  if (c->connected) publish(c, c->sent, 0);
}

static void subscribe(Client* c) {
  uint8_t p[64] = {0x82, 0, 0, 1, 0};
  size_t size = 5 + topic_of(c, p + 5);
  p[size++] = 1;
  p[1] = size - 2;
  write_all(c, p, size);
}

static void welcome(Client* c) {
  double gone = now() - c->left;
  if (gone > longest) longest = gone;
  c->connected = true;
  if (!publishes(c)) {
    if (!c->subscribed) subscribe(c);
    return;
  }
  for (int number = c->first_open; number <= c->sent; number++)
    if (!c->done[number]) publish(c, number, 1);
}

// The length of the property at p: its number and its value.
static size_t property_size(const uint8_t* p) {
  size_t text = 3 + (p[1] << 8 | p[2]);
  switch (*p) {
    case 0x24: case 0x25: case 0x28: case 0x29: case 0x2A: return 2;
    case 0x13: case 0x21: case 0x22: return 3;
    case 0x11: case 0x27: return 5;
    case 0x26: return text + 2 + (p[text] << 8 | p[text + 1]);
    default: return text;
  }
}

// The port of the server reference in the properties, 0 without one. They are shorter than 16 KiB.
static int reference(const uint8_t* p, const uint8_t* end) {
  char text[256];
  if (p >= end) return 0;
  p += *p & 0x80 ? 2 : 1;
  for (; p < end; p += property_size(p))
    if (*p == SERVER_REFERENCE) {
      snprintf(text, sizeof text, "%.*s", p[1] << 8 | p[2], p + 3);
      char* colon = strrchr(text, ':');
      return colon ? atoi(colon + 1) : 0;
    }
  return 0;
}

// CONNACK or DISCONNECT: whether the client is or stays connected.
static bool told(Client* c, int code, const uint8_t* properties, const uint8_t* end, bool connack) {
  if (connack && code == ACCEPTED) {
    welcome(c);
    return true;
  }
  int port = reference(properties, end);
  if (port) {
    moved++;
    leave(c, port, 0);
  } else {
    refused[code]++;
    leave(c, c->port, AGAIN_S);
  }
  return false;
}

static void take_number(Client* c, int number) {
  if (publishes(c)) {
    if (number < 1 || number > c->sent || c->done[number]) return;  // sent again, and both were acknowledged
    acknowledged++;
    c->done[number] = 1;
    while (c->first_open <= c->sent && c->done[c->first_open]) c->first_open++;
  } else {
    if (number < 1 || number > MOST) fail("a message that nobody has published");
    doubled += c->done[number];
    c->done[number] = 1;
  }
}

// A whole packet with `size` bytes behind its head. Whether the connection goes on; acks[*acked] gets a PUBACK.
static bool take_packet(Client* c, int kind, const uint8_t* p, size_t size, uint8_t* acks, size_t* acked) {
  if (kind == PUBACK) take_number(c, p[0] << 8 | p[1]);
  if (kind == CONNACK) return told(c, p[1], p + 2, p + size, true);
  if (kind == DISCONNECT) return told(c, size ? p[0] : 0, p + 1, p + size, false);
  if (kind == SUBACK) {
    if (p[size - 1] != 1) fail("a subscription is refused");
    subscribed += !c->subscribed;
    c->subscribed = true;
  }
  if (kind == PUBLISH) {
    char digits[NUMBER + 1] = {0};
    size_t at = 2 + (p[0] << 8 | p[1]);
    memcpy(digits, p + size - NUMBER, NUMBER);
    take_number(c, atoi(digits));
    memcpy(acks + *acked, (uint8_t[]){PUBACK, 2, p[at], p[at + 1]}, 4);
    *acked += 4;
  }
  return true;
}

static void take_input(Client* c) {
  static uint8_t in[2 * BUFFER], acks[2 * BUFFER];
  size_t size = c->rest_size, at = 0, acked = 0;
  if (size) memcpy(in, c->rest, size);
  ssize_t n = recv(c->fd, in + size, BUFFER, MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) {
    leave(c, other_port(c->port), AGAIN_S);
    return;
  }
  for (size += n; at + 2 <= size;) {
    size_t head = 2, length = in[at + 1];
    if (length & 0x80) {
      if (at + 3 > size) break;
      head = 3;
      length = (length & 0x7F) | in[at + 2] << 7;
    }
    if (at + head + length > size) break;
    if (!take_packet(c, in[at] & 0xF0, in + at + head, length, acks, &acked)) return;
    at += head + length;
  }
  if (acked) write_all(c, acks, acked);
  c->rest_size = size - at;
  if (c->rest_size) {
    c->rest = realloc(c->rest, c->rest_size);
    memcpy(c->rest, in + at, c->rest_size);
  }
}

static long open_count(void) { return sent - acknowledged; }

static long missing(void) {
  long count = 0;
  for (int pair = 0; pair < pairs; pair++)
    for (int number = 1; number <= clients[pairs + pair].sent; number++)
      count += clients[pairs + pair].done[number] && !clients[pair].done[number];
  return count;
}

static bool all_subscribed(void) { return subscribed == pairs; }
static bool all_connected(void) {
  for (int i = 0; i < 2 * pairs; i++)
    if (!clients[i].connected) return false;
  return all_subscribed();
}
static bool all_acknowledged(void) { return !open_count(); }
static bool all_there(void) { return !missing(); }

// One turn of at most a tick: 1 if a line was read, -1 at the end of standard input.
static int turn(void) {
  struct epoll_event events[MOST_EVENTS];
  int heard = 0, n = epoll_wait(ep, events, MOST_EVENTS, 10);
  for (int i = 0; i < n; i++) {
    int64_t what = (int64_t)events[i].data.u64;
    if (what == STDIN_EVENT) {
      char line[64];
      heard = read(0, line, sizeof line) > 0 ? 1 : -1;
      if (heard < 0) epoll_ctl(ep, EPOLL_CTL_DEL, 0, NULL);
    } else if (what == TIMER_EVENT) {
      uint64_t ticks;
      if (read(timer, &ticks, sizeof ticks) < 0) continue;
    } else {
      take_input(&clients[what]);
    }
  }
  return_those_due();
  return heard;
}

static bool wait_until(bool (*done)(void), double most) {
  double end = now() + most, looked = 0;
  for (bool found = false; !found; turn()) {
    if (now() - looked < 0.05) continue;
    looked = now();
    found = done();
    if (!found && looked > end) return false;
  }
  return true;
}

static void publish_until_end(void) {
  struct itimerspec every = {{0, TICK_NS}, {0, TICK_NS}};
  double began = now();
  timerfd_settime(timer, 0, &every, NULL);
  while (turn() >= 0)
    for (long due = (now() - began) * rate; sent < due; sent++) publish_next(&clients[pairs + sent % pairs]);
}

int main(int argc, char** argv) {
  static struct option options[] = {{"ports", 1, 0, 'p'}, {"pairs", 1, 0, 'n'}, {"rate", 1, 0, 'r'}, {0}};
  for (int o; (o = getopt_long(argc, argv, "", options, 0)) != -1;) switch (o) {
      case 'p':
        if (sscanf(optarg, "%d,%d", ports, ports + 1) != 2) return 1;
        break;
      case 'n': pairs = atoi(optarg); break;
      case 'r': rate = atof(optarg); break;
      default: return 1;
    }
  ep = epoll_create1(0);
  timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  watch(timer, TIMER_EVENT);
  clients = calloc(2 * pairs, sizeof *clients);
  for (int i = 0; i < 2 * pairs; i++) {
    Client* c = &clients[i];
    c->number = i;
    c->first_open = 1;
    c->left = now();
    c->done = calloc(MOST + 1, 1);
    connect_to(c, ports[0]);
    turn();
  }
  if (!wait_until(all_connected, 3 * PATIENCE)) fail("not all clients could connect");
  longest = 0;
  watch(0, STDIN_EVENT);
  puts("connected");
  fflush(stdout);
  while (!turn()) continue;
  publish_until_end();
  wait_until(all_acknowledged, PATIENCE);
  wait_until(all_there, PATIENCE);
  printf("{\"acknowledged\": %ld, \"lost\": %ld, \"doubled\": %ld, \"open\": %ld, \"moved\": %ld, \"longest_s\": %.3f, ",
         acknowledged, missing(), doubled, open_count(), moved, longest);
  printf("\"refused\": {");
  const char* separator = "";
  for (int code = 0; code < 256; code++)
    if (refused[code]) {
      printf("%s\"0x%02X\": %ld", separator, code, refused[code]);
      separator = ", ";
    }
  puts("}}");
  return 0;
}
