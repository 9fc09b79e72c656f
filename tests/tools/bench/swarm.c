// swarm: many MQTT 3.1.1 clients that publish nothing (one thread, epoll).
//   swarm connects --count N --window W   N clients connect, at most W of them waiting for their CONNACK, and leave
//   swarm idle --count N                  N clients connect and stay until standard input ends
//   swarm storm --rate R                  R SUBSCRIBE and R UNSUBSCRIBE a second, until standard input ends
// --transport tcp|tls|ws|wss: see transport.h. --first N numbers the clients from N on: several swarms side by side would
// otherwise take each other's sessions over.
// Each prints one JSON line; idle prints it when all are connected, the others at the end.
// Source addresses go round 127.0.0.2 and up, so that ports in TIME_WAIT do not run out.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "transport.h"

enum { SOURCES = 50, KEEP_ALIVE = 600, MOST_EVENTS = 512, STDIN_EVENT = -1, TIMER_EVENT = -2 };

static int port = 1883, count = 1000, window = 100, rate = 1000, first = 0;
static int ep;

static void die(const char* what) {
  perror(what);
  exit(1);
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void watch(int fd, int64_t what, uint32_t events) {
  struct epoll_event e = {.events = events, .data.u64 = (uint64_t)what};
  if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e)) die("epoll_ctl");
}

static void write_all(Stream* s, const uint8_t* data, size_t size) {
  if (stream_send(s, data, size) != (ssize_t)size) die("send");
}

static int open_socket(int number) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  if (fd < 0) die("socket");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
  struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + number % SOURCES)};
  if (bind(fd, (void*)&from, sizeof from)) die("bind");
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (connect(fd, (void*)&to, sizeof to)) die("connect");
  fcntl(fd, F_SETFL, O_NONBLOCK);
  return fd;
}

static void send_connect(Stream* s, int number) {
  uint8_t p[64] = {0x10, 0, 0, 4, 'M', 'Q', 'T', 'T', 4, 2, KEEP_ALIVE >> 8, KEEP_ALIVE & 255, 0};
  int n = snprintf((char*)p + 14, 40, "swarm-%d", number);
  p[13] = n;
  p[1] = 12 + n;
  write_all(s, p, 14 + n);
}

// Whether the CONNACK was there. Four bytes in one segment: a broker that cuts them would be a find.
static int take_connack(Stream* s) {
  uint8_t p[16];
  ssize_t n = stream_receive(s, p, sizeof p);
  if (n < 0 && errno == EAGAIN) return 0;  // TLS talks to itself, too
  if (n != 4 || p[0] != 0x20 || p[3]) {
    fprintf(stderr, "swarm: a client was refused (%zd bytes, code %d)\n", n, n == 4 ? p[3] : -1);
    exit(2);
  }
  return 1;
}

typedef struct Client {
  Stream stream;
  int number, asked;
} Client;

static void begin_client(Client* c, int number) {
  stream_begin(&c->stream, open_socket(number));
  c->number = number;
  c->asked = 0;
}

// Go on with the handshakes, and ask as soon as MQTT may begin. Whether the CONNACK has come.
static int connected(Client* c) {
  if (c->asked) return take_connack(&c->stream);
  if (stream_open(&c->stream)) {
    send_connect(&c->stream, c->number);
    c->asked = 1;
  }
  return 0;
}

// Connect `count` clients and, unless `stay`, leave as soon as the CONNACK is there. Returns the seconds it took.
static double connect_all(int stay) {
  Client* clients = calloc(count, sizeof *clients);
  struct epoll_event events[MOST_EVENTS];
  int opened = 0, done = 0;
  double begin = seconds();
  while (done < count) {
    for (; opened < count && opened - done < window; opened++) {
      begin_client(&clients[opened], first + opened);
      connected(&clients[opened]);
      watch(clients[opened].stream.fd, opened, EPOLLIN);
    }
    int n = epoll_wait(ep, events, MOST_EVENTS, 10000);
    if (n <= 0) {
      fprintf(stderr, "swarm: no CONNACK for 10 s (%d of %d)\n", done, count);
      exit(3);
    }
    for (int i = 0; i < n; i++) {
      Client* c = &clients[events[i].data.u64];
      if (!connected(c)) continue;
      done++;
      if (stay) {
        epoll_ctl(ep, EPOLL_CTL_DEL, c->stream.fd, 0);
      } else {
        write_all(&c->stream, (const uint8_t*)"\xe0\0", 2);
        stream_close(&c->stream);
      }
    }
  }
  free(clients);
  return seconds() - begin;
}

static void drain_stdin(void) {
  char buffer[256];
  while (read(0, buffer, sizeof buffer) > 0) continue;
}

// One SUBSCRIBE and the UNSUBSCRIBE of the one a hundred before; every second filter has a wildcard.
static void subscribe_and_unsubscribe(Stream* s, long n) {
  for (int leave = 0; leave < 2; leave++) {
    long which = n - 100 * leave;
    if (which < 0) continue;
    uint8_t p[64] = {leave ? 0xA2 : 0x82, 0, which % 60000 >> 8, which % 60000, 0, 0};
    if (!p[2] && !p[3]) p[3] = 1;
    int size = snprintf((char*)p + 6, 50, which % 2 ? "storm/%ld/+" : "storm/%ld/x", which);
    p[5] = size;
    if (!leave) p[6 + size] = 0;
    p[1] = 4 + size + !leave;
    write_all(s, p, 2 + p[1]);
  }
}

static double storm(void) {
  Client client;
  Stream* s = &client.stream;
  struct epoll_event events[MOST_EVENTS];
  uint8_t buffer[65536];
  int running = 1;
  begin_client(&client, 0);
  watch(s->fd, 0, EPOLLIN);
  while (!connected(&client))
    if (epoll_wait(ep, events, 1, 10000) <= 0) die("no CONNACK");
  int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  struct itimerspec every = {{0, 10000000}, {0, 10000000}};
  timerfd_settime(timer, 0, &every, 0);
  watch(timer, TIMER_EVENT, EPOLLIN);
  watch(0, STDIN_EVENT, EPOLLIN | EPOLLHUP);
  double begin = seconds();
  long sent = 0;
  while (running) {
    int n = epoll_wait(ep, events, MOST_EVENTS, -1);
    for (int i = 0; i < n; i++) {
      int64_t what = (int64_t)events[i].data.u64;
      if (what == STDIN_EVENT) {
        running = 0;
      } else if (what == TIMER_EVENT) {
        uint64_t ticks;
        if (read(timer, &ticks, sizeof ticks) < 0) continue;
        for (long due = (seconds() - begin) * rate; sent < due; sent++) subscribe_and_unsubscribe(s, sent);
      } else if (stream_receive(s, buffer, sizeof buffer) == 0) {
        fprintf(stderr, "swarm: closed by the broker\n");
        exit(2);
      }
    }
  }
  count = sent;
  return seconds() - begin;
}

int main(int argc, char** argv) {
  static struct option options[] = {
      {"port", 1, 0, 'p'}, {"count", 1, 0, 'n'}, {"window", 1, 0, 'w'}, {"rate", 1, 0, 'r'},
      {"first", 1, 0, 'f'}, {"transport", 1, 0, 'T'}, {0}};
  for (int o; (o = getopt_long(argc, argv, "", options, 0)) != -1;) switch (o) {
      case 'p': port = atoi(optarg); break;
      case 'n': count = atoi(optarg); break;
      case 'w': window = atoi(optarg); break;
      case 'r': rate = atoi(optarg); break;
      case 'f': first = atoi(optarg); break;
      case 'T': choose_transport(optarg); break;
      default: return 1;
    }
  const char* what = optind < argc ? argv[optind] : "";
  ep = epoll_create1(0);
  double took;
  if (!strcmp(what, "connects") || !strcmp(what, "idle")) took = connect_all(!strcmp(what, "idle"));
  else if (!strcmp(what, "storm")) took = storm();
  else {
    fprintf(stderr, "swarm: connects, idle or storm?\n");
    return 1;
  }
  printf("{\"count\": %d, \"seconds\": %.4f}\n", count, took);
  fflush(stdout);
  if (!strcmp(what, "idle")) drain_stdin();
  return 0;
}
