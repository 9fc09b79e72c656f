// surge: clients that publish at QoS 1, far beyond what a broker can do or well within it; what they see each second.
//
// It connects --clients of them and prints "connected". Then it reads a line with the numbers of those that are to
// publish and one with those that are to subscribe: who asks for more clients than it needs can so choose those that
// are at a certain worker. It prints "subscribed", and begins with the next line that it reads.
//
// Open loop (--rate, of all publishers): what is due is sent as soon as the socket and the --window of unacknowledged
// publishes have room. Latency counts from when a publish was due, or from when there was room if that was later.
// Closed loop (no --rate): each publisher has --window publishes under way, which are until all subscribers have them.
// A last line, second 0, is of the whole time; a publish that was not answered by then counts as acknowledged at its
// end. In the last --quiet seconds nobody publishes, and what is under way arrives: who has sent as much as was received
// lost nothing. `worst_p99_ms` is that of the publisher whose messages took longest to their subscribers, over all of
// the time. MQTT 3.1.1, as 5.0 would limit the window.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
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

enum { BUFFER = 1 << 16, ENOUGH = 1 << 14, FULL = 1 << 15, LARGEST = 4096, TICK_NS = 1000000, SECOND_US = 1000000 };

// Microseconds in log-linear buckets, 64 for each power of two: at most 1.6 % too high.
enum { LINEAR = 64, BITS = 6, BUCKETS = 23 * LINEAR };
typedef struct Latencies {
  long count, buckets[BUCKETS];
} Latencies;

typedef struct Client {
  int fd, number, watched, waits_for_room;
  uint8_t in[BUFFER], out[BUFFER];
  size_t in_size, out_size;
  long sent, acknowledged, undelivered;
  uint64_t room_since;
  uint64_t* sent_at;       // of the last --window publishes
  Latencies* to_delivery;  // of all it published
} Client;

static int clients = 1, window = 10, payload = 32, seconds = 10, quiet = 0, everywhere = 0;
static double rate = 0;
static const char* prefix = "surge";
static Client *all, **publishers, **subscribers;
static int publishing = 0, subscribing = 0, waiting_for, loop, timer;
static uint64_t began;

// What is seen in some time: numbers of one type, so that times can be added up.
typedef struct Sight {
  long sent, closed;
  Latencies to_acknowledgement, to_delivery;
} Sight;
static Sight now_seen, all_seen;

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static void add_latency(Latencies* l, uint64_t us) {
  if (us >= 1ull << 28) us = (1ull << 28) - 1;
  int shift = us < LINEAR ? 0 : 63 - __builtin_clzll(us) - BITS;
  l->buckets[(shift << BITS) + (us >> shift)]++;
  l->count++;
}

static double quantile_ms(const Latencies* l, double share) {
  long wanted = l->count * share, seen = 0;
  for (int i = 0; i < BUCKETS; i++) {
    seen += l->buckets[i];
    if (seen > wanted) {
      int shift = i < 2 * LINEAR ? 0 : (i >> BITS) - 1;
      return ((uint64_t)(i - (shift << BITS) + 1) << shift) / 1e3;
    }
  }
  return 0;
}

static void leave(Client* c) {
  close(c->fd);
  c->fd = -1;
  now_seen.closed++;
}

static void flush_out(Client* c) {
  if (c->fd < 0 || !c->out_size) return;
  ssize_t took = send(c->fd, c->out, c->out_size, MSG_NOSIGNAL);
  if (took < 0 && errno != EAGAIN) {
    leave(c);
    return;
  }
  if (took > 0) {
    memmove(c->out, c->out + took, c->out_size - took);
    c->out_size -= took;
  }
  if (c->waits_for_room && !c->out_size) c->room_since = now_us();
  c->waits_for_room = c->out_size > 0;
  // Who cannot say what it owes reads no more.
  int watched = (c->out_size < FULL ? EPOLLIN : 0) | (c->waits_for_room ? EPOLLOUT : 0);
  if (watched != c->watched) {
    struct epoll_event e = {.events = watched, .data.ptr = c};
    epoll_ctl(loop, EPOLL_CTL_MOD, c->fd, &e);
    c->watched = watched;
  }
}

static size_t put_text(uint8_t* at, const char* text) {
  size_t n = strlen(text);
  at[0] = n >> 8;
  at[1] = n;
  memcpy(at + 2, text, n);
  return n + 2;
}

// Appends a packet of at most LARGEST bytes and a topic: there is room, as nobody says more who has FULL to say.
static void put_packet(Client* c, uint8_t first, const uint8_t* body, size_t n) {
  uint8_t* at = c->out + c->out_size;
  *at++ = first;
  size_t left = n;
  do {
    *at++ = (left & 127) | (left > 127 ? 128 : 0);
    left >>= 7;
  } while (left);
  memcpy(at, body, n);
  c->out_size = at + n - c->out;
}

static void topic_of(char* topic, int number) {
  if (everywhere) snprintf(topic, 64, "%s/all", prefix);
  else snprintf(topic, 64, "%s/%d", prefix, number % subscribing);
}

static void say_connect(Client* c) {
  static const uint8_t head[] = "\0\4MQTT\4\2\2\130";  // 3.1.1, clean session, keep alive 600 s
  uint8_t body[128];
  char id[64];
  memcpy(body, head, 10);
  snprintf(id, sizeof id, "%s-%d", prefix, c->number);
  put_packet(c, 0x10, body, 10 + put_text(body + 10, id));
  flush_out(c);
}

static void say_subscribe(Client* c, int number) {
  uint8_t body[128] = {0, 1};
  char topic[64];
  topic_of(topic, number);
  size_t n = 2 + put_text(body + 2, topic);
  body[n++] = 1;
  put_packet(c, 0x82, body, n);
  flush_out(c);
}

static void publish(Client* c, int number, uint64_t since) {
  uint8_t body[LARGEST + 128];
  char topic[64];
  topic_of(topic, number);
  size_t n = put_text(body, topic);
  int id = c->sent % window + 1;  // acknowledged in order: it is free again
  body[n++] = id >> 8;
  body[n++] = id;
  memcpy(body + n, &since, 8);
  memcpy(body + n + 8, &number, 4);
  memset(body + n + 12, 'x', payload - 12);
  put_packet(c, 0x32, body, n + payload);
  c->sent_at[c->sent % window] = since;
  c->sent++;
  c->undelivered += everywhere ? subscribing : 1;
  now_seen.sent++;
}

static uint64_t due_at(int number, long count) {
  return began + (uint64_t)((count + (double)number / publishing) * SECOND_US * publishing / rate);
}

// All that publisher *number* may send now.
static void advance(int number, uint64_t now) {
  Client* c = publishers[number];
  while (c->fd >= 0 && !c->waits_for_room && c->sent - c->acknowledged < window) {
    uint64_t since = rate > 0 ? due_at(number, c->sent) : now;
    if (since > now) break;
    if (rate <= 0 && c->undelivered > (long)(window - 1) * (everywhere ? subscribing : 1)) break;
    publish(c, number, since > c->room_since ? since : c->room_since);
    if (c->out_size >= ENOUGH) flush_out(c);
  }
  flush_out(c);
}

static void take_packet(Client* c, uint8_t first, const uint8_t* body, uint64_t now) {
  switch (first >> 4) {
    case 2:  // CONNACK
      if (body[1]) {
        fprintf(stderr, "refused with %d\n", body[1]);
        exit(1);
      }
      waiting_for--;
      break;
    case 9:  // SUBACK
      waiting_for--;
      break;
    case 4:  // PUBACK
      if (c->sent - c->acknowledged == window) c->room_since = now;
      add_latency(&now_seen.to_acknowledgement, now - c->sent_at[c->acknowledged++ % window]);
      break;
    case 3: {  // PUBLISH
      const uint8_t* at = body + 2 + (body[0] << 8 | body[1]);
      put_packet(c, 0x40, at, 2);
      uint64_t since;
      int number;
      memcpy(&since, at + 2, 8);
      memcpy(&number, at + 10, 4);
      add_latency(&now_seen.to_delivery, now - since);
      add_latency(publishers[number]->to_delivery, now - since);
      publishers[number]->undelivered--;
    }
  }
}

static void take_input(Client* c) {
  if (c->in_size < BUFFER) {
    ssize_t got = recv(c->fd, c->in + c->in_size, BUFFER - c->in_size, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
      leave(c);
      return;
    }
    if (got > 0) c->in_size += got;
  }
  size_t at = 0;
  uint64_t now = now_us();
  while (c->in_size - at >= 2 && c->out_size < FULL) {
    size_t length = 0, body = at + 1;
    int shift = 0;
    do {
      length |= (size_t)(c->in[body] & 127) << shift;
      shift += 7;
    } while (c->in[body++] & 128 && body < c->in_size);
    if (c->in[body - 1] & 128 || c->in_size - body < length) break;
    take_packet(c, c->in[at], c->in + body, now);
    at = body + length;
    if (c->out_size >= ENOUGH) flush_out(c);  // what acknowledges
    if (c->fd < 0) return;
  }
  memmove(c->in, c->in + at, c->in_size - at);
  c->in_size -= at;
  flush_out(c);
}

static void report(int second, const Sight* s) {
  printf("{\"second\":%d,\"sent\":%ld,\"acknowledged\":%ld,\"received\":%ld,\"closed\":%ld,", second, s->sent,
         s->to_acknowledgement.count, s->to_delivery.count, s->closed);
  printf("\"p50_ms\":%.3f,\"p99_ms\":%.3f,", quantile_ms(&s->to_acknowledgement, 0.5),
         quantile_ms(&s->to_acknowledgement, 0.99));
  printf("\"delivery_p50_ms\":%.3f,\"delivery_p99_ms\":%.3f", quantile_ms(&s->to_delivery, 0.5),
         quantile_ms(&s->to_delivery, 0.99));
}

// The second has ended: what was seen in it is said, and becomes part of all.
static void close_second(int second) {
  report(second, &now_seen);
  puts("}");
  const long* from = (const long*)&now_seen;
  long* to = (long*)&all_seen;
  for (size_t i = 0; i < sizeof now_seen / sizeof *from; i++) to[i] += from[i];
  memset(&now_seen, 0, sizeof now_seen);
}

static void report_all(uint64_t now) {
  double worst = 0;
  for (int i = 0; i < publishing; i++) {
    Client* c = publishers[i];
    for (long n = c->acknowledged; n < c->sent; n++)
      add_latency(&all_seen.to_acknowledgement, now - c->sent_at[n % window]);
    double p99 = quantile_ms(c->to_delivery, 0.99);
    if (p99 > worst) worst = p99;
  }
  report(0, &all_seen);
  printf(",\"worst_p99_ms\":%.3f}\n", worst);
}

static void handle_events(int timeout) {
  struct epoll_event events[256];
  int n = epoll_wait(loop, events, 256, timeout);
  for (int i = 0; i < n; i++) {
    Client* c = events[i].data.ptr;
    if (!c) {
      uint64_t ticks;  // it goes on once they are read
      if (read(timer, &ticks, sizeof ticks) < 0) fail("timer");
    } else {
      flush_out(c);
      if (c->fd >= 0) take_input(c);
    }
  }
}

static void wait_for_answers(int count, const char* said) {
  uint64_t until = now_us() + 60ull * SECOND_US;
  while (waiting_for > 0 && !now_seen.closed) {
    handle_events(1000);
    if (now_us() > until) break;
  }
  if (waiting_for > 0) {
    fprintf(stderr, "%d of %d never %s\n", waiting_for, count, said);
    exit(1);
  }
  puts(said);
  fflush(stdout);
}

static void connect_all(int port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  waiting_for = clients;
  for (int i = 0; i < clients; i++) {
    Client* c = &all[i];
    int one = 1;
    c->number = i;
    c->watched = EPOLLIN;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (void*)&to, sizeof to)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(loop, EPOLL_CTL_ADD, c->fd, &e);
    say_connect(c);
  }
  wait_for_answers(clients, "connected");
}

// The clients whose numbers are on the next line.
static Client** chosen(int* count) {
  char *line = 0, *rest, *word;
  size_t size = 0;
  if (getline(&line, &size, stdin) < 0) exit(1);
  Client** found = calloc(clients, sizeof *found);
  for (word = strtok_r(line, " \n", &rest); word; word = strtok_r(0, " \n", &rest)) {
    int number = atoi(word);
    if (number < 0 || number >= clients) exit(1);
    found[(*count)++] = &all[number];
  }
  free(line);
  return found;
}

static void run(void) {
  struct itimerspec tick = {{0, TICK_NS}, {0, TICK_NS}};
  int second = 0;
  timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  timerfd_settime(timer, 0, &tick, 0);
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = 0};
  epoll_ctl(loop, EPOLL_CTL_ADD, timer, &e);
  began = now_us();
  while (second < seconds) {
    handle_events(1000);
    uint64_t now = now_us();
    bool publishes = now - began < (uint64_t)(seconds - quiet) * SECOND_US;
    for (int i = 0; i < publishing && publishes; i++) advance(i, now);
    for (; now - began >= (uint64_t)(second + 1) * SECOND_US && second < seconds;) close_second(++second);
  }
  report_all(now_us());
}

int main(int argc, char** argv) {
  static struct option known[] = {{"port", 1, 0, 'p'},    {"clients", 1, 0, 'c'}, {"prefix", 1, 0, 'x'},
                                  {"rate", 1, 0, 'r'},    {"window", 1, 0, 'w'},  {"payload", 1, 0, 'l'},
                                  {"seconds", 1, 0, 's'}, {"quiet", 1, 0, 'q'},   {"fanout", 0, 0, 'f'}, {0}};
  int option, port = 1883;
  while ((option = getopt_long(argc, argv, "", known, 0)) != -1) switch (option) {
      case 'p': port = atoi(optarg); break;
      case 'c': clients = atoi(optarg); break;
      case 'x': prefix = optarg; break;
      case 'r': rate = atof(optarg); break;
      case 'w': window = atoi(optarg); break;
      case 'l': payload = atoi(optarg); break;
      case 's': seconds = atoi(optarg); break;
      case 'q': quiet = atoi(optarg); break;
      case 'f': everywhere = 1; break;
      default: return 1;
    }
  if (clients < 1 || window < 1 || window > 65535 || payload < 12 || payload > LARGEST) {
    fprintf(stderr, "--window is 1 to 65535, --payload 12 to %d\n", LARGEST);
    return 1;
  }
  all = calloc(clients, sizeof *all);
  loop = epoll_create1(0);
  connect_all(port);
  publishers = chosen(&publishing);
  subscribers = chosen(&subscribing);
  waiting_for = subscribing;
  for (int i = 0; i < publishing; i++) {
    publishers[i]->sent_at = calloc(window, sizeof(uint64_t));
    publishers[i]->to_delivery = calloc(1, sizeof(Latencies));
  }
  for (int i = 0; i < subscribing; i++) say_subscribe(subscribers[i], i);
  wait_for_answers(subscribing, "subscribed");
  if (getchar() == EOF) return 1;
  run();
  return 0;
}
