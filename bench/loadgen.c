/* A lean load generator for servers on this machine: unary gRPC over HTTP/2, or HTTP/1.1.
 *
 * One thread, one epoll loop, about 5 us of CPU a request, so that what is measured is the
 * server. Closed loop: a fixed number of requests is always under way. Open loop: requests
 * leave at the moments of a schedule whether or not others have been answered, and latency
 * counts from the scheduled moment. With --timeout-ms a request that is not answered in time is
 * given up, as clients of gRPC do. Only 127.0.0.0/8 is ever connected to; time and number of
 * requests are bounded. Prints one JSON object. Written and read by sits_bench/loadgen.py.
 *
 * With --stall-ms it also tells when nothing was answered for so long although something was
 * open, and whether the machine itself was slow then.
 *
 * Request file: records of u32 class, u32 length, bytes. Schedule file: records of f64 seconds
 * from the start, u32 index of a request, u32 zero; ascending.
 *
 * cc -O2 -pthread -o loadgen loadgen.c -lnghttp2 -lm
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_EXCEEDED 4 /* of gRPC */
#define UNAVAILABLE 14
#define MAX_RECONNECTS 1000
#define MAX_CONNECTIONS 1024
#define MAX_PIDS 256
#define MAX_HEADERS 16
#define MAX_CLASSES 1024
#define MAX_STATUS 600 /* gRPC codes are below 17, HTTP ones below 600 */
#define MAX_SECONDS 600.0
#define MAX_SENT 100000000ULL
#define READ_BYTES (256 << 10)
#define FLUSH_BYTES (64 << 10)
#define WINDOW_BYTES ((1 << 30) - 1)
#define MAX_STALLS 256
#define WORK_STEPS 20000 /* about 20 us */
#define WORK_EVERY_NS 2000000
#define MAX_WORKS 300000 /* in MAX_SECONDS */

static void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "loadgen: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  exit(2);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (!memory) die("out of memory");
  return memory;
}

/* ---- histogram: 128 linear steps in each power of two, so within 0.8 % ---- */

#define STEPS 128
typedef struct {
  uint64_t counts[58 * STEPS], total, max;
  double sum;
} histogram;

static unsigned bucket_of(uint64_t ns) {
  if (ns < STEPS) return (unsigned)ns;
  unsigned shift = 63 - 7 - (unsigned)__builtin_clzll(ns);
  return (shift + 1) * STEPS + (unsigned)((ns >> shift) - STEPS);
}

static double value_of(unsigned bucket) {
  if (bucket < STEPS) return bucket;
  unsigned shift = bucket / STEPS - 1;
  return ldexp((double)(bucket % STEPS + STEPS) + 0.5, (int)shift);
}

static void count(histogram *h, uint64_t ns) {
  h->counts[bucket_of(ns)]++;
  h->total++;
  h->sum += (double)ns;
  if (ns > h->max) h->max = ns;
}

static double percentile(const histogram *h, double share) {
  uint64_t wanted = (uint64_t)ceil(share * (double)h->total), seen = 0;
  for (unsigned i = 0; i < 58 * STEPS; i++)
    if ((seen += h->counts[i]) >= wanted && seen) return fmin(value_of(i), (double)h->max);
  return 0;
}

static void print_histogram(const char *name, const histogram *h) {
  static const struct { const char *name; double share; } points[] = {
      {"p50", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}, {"p999", 0.999}};
  printf("\"%s\":{\"count\":%llu", name, (unsigned long long)h->total);
  for (size_t i = 0; i < sizeof points / sizeof *points; i++)
    printf(",\"%s\":%.6g", points[i].name, percentile(h, points[i].share) / 1e6);
  printf(",\"max\":%.6g,\"mean\":%.6g}", (double)h->max / 1e6,
         h->total ? h->sum / (double)h->total / 1e6 : 0.0);
}

/* ---- what to send ---- */

typedef struct {
  uint32_t class, length; /* of `bytes`, gRPC frame header included */
  uint8_t *bytes;
} request;

typedef struct {
  double at_s;
  uint32_t request, zero;
} arrival;

static struct {
  const char *target, *path, *pids;
  char *headers[MAX_HEADERS];
  int header_count, connections, in_flight, max_open;
  double warm_up_s, duration_s, drain_s, stall_ms;
  uint64_t timeout_ns; /* 0 = none */
  bool http1;
} option = {.path = "/inference.GRPCInferenceService/ModelInfer", .connections = 1,
            .duration_s = 1, .drain_s = 5, .max_open = 20000};

static request *requests;
static uint32_t request_count, class_count;
static arrival *schedule;
static size_t arrival_count;

static uint8_t *read_file(const char *name, size_t *length) {
  FILE *file = fopen(name, "rb");
  if (!file) die("%s: %s", name, strerror(errno));
  fseek(file, 0, SEEK_END);
  *length = (size_t)ftell(file);
  rewind(file);
  uint8_t *bytes = allocate(*length, 1);
  if (fread(bytes, 1, *length, file) != *length) die("%s: cannot read it", name);
  fclose(file);
  return bytes;
}

static void read_requests(const char *name) {
  size_t length, at = 0, room = 0;
  uint8_t *bytes = read_file(name, &length);
  uint32_t prefix = option.http1 ? 0 : 5;
  while (at + 8 <= length) {
    uint32_t head[2];
    memcpy(head, bytes + at, 8);
    at += 8;
    if (head[0] >= MAX_CLASSES || at + head[1] > length) die("%s: malformed", name);
    if (request_count == room) {
      room = room ? 2 * room : 64;
      if (!(requests = realloc(requests, room * sizeof *requests))) die("out of memory");
    }
    request *r = &requests[request_count++];
    r->class = head[0];
    r->length = head[1] + prefix;
    r->bytes = allocate(r->length, 1);
    if (prefix) {
      uint32_t big_endian = htonl(head[1]);
      memcpy(r->bytes + 1, &big_endian, 4);
    }
    memcpy(r->bytes + prefix, bytes + at, head[1]);
    at += head[1];
    if (r->class >= class_count) class_count = r->class + 1;
  }
  if (!request_count) die("%s: no requests", name);
  free(bytes);
}

static void read_schedule(const char *name) {
  size_t length;
  schedule = (arrival *)read_file(name, &length);
  arrival_count = length / sizeof *schedule;
  for (size_t i = 0; i < arrival_count; i++)
    if (schedule[i].request >= request_count || (i && schedule[i].at_s < schedule[i - 1].at_s))
      die("%s: malformed", name);
}

/* ---- what came back ---- */

static uint64_t start_ns, warm_ns, end_ns, stop_ns;
static uint64_t sent, unsent, held, open_now, done_in_window, ok_in_window, pushbacks, body_bytes;
static uint64_t reconnects;
static uint64_t statuses[MAX_STATUS + 1];
static histogram answered, refused, expired, lag, *by_class;
static char first_error[256], goodbye[256];
static uint32_t next_request;
static size_t next_arrival;

/* ---- when nothing is answered ---- */

static struct {
  uint64_t from_ns, to_ns, open;
} stalls[MAX_STALLS];
static size_t stall_count;
static uint64_t last_answer_ns, busy_since_ns;

/* An answer came. Time in which nothing was open is no stall; an open loop is busy from the
 * moment at which a request was due. */
static void note_stall(uint64_t now) {
  uint64_t from = last_answer_ns > busy_since_ns ? last_answer_ns : busy_since_ns;
  last_answer_ns = now;
  if (option.stall_ms <= 0 || from < warm_ns || from >= end_ns) return;
  if ((double)(now - from) / 1e6 < option.stall_ms || stall_count == MAX_STALLS) return;
  stalls[stall_count].from_ns = from;
  stalls[stall_count].to_ns = now;
  stalls[stall_count++].open = open_now;
}

/* ---- the machine ---- */

/* A host may hold its virtual processors back and not say so. So a thread does the same small
 * piece of work again and again, and takes the CPU time of it: waiting for a processor that
 * others of this machine have is not in that, a processor that is slow is. */
static struct {
  uint64_t at_ns, took_ns;
} works[MAX_WORKS];
static atomic_size_t work_count;
static pthread_t worker;
static atomic_bool worker_over;

static void *work(void *unused) {
  static volatile uint64_t value = 1;
  while (!atomic_load(&worker_over) && work_count < MAX_WORKS) {
    struct timespec before, after, rest = {.tv_nsec = WORK_EVERY_NS};
    uint64_t at = now_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    for (int i = 0; i < WORK_STEPS; i++) value = value * 6364136223846793005ULL + 1;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    works[work_count].at_ns = at;
    works[work_count++].took_ns = (uint64_t)((after.tv_sec - before.tv_sec) * 1000000000LL +
                                             after.tv_nsec - before.tv_nsec);
    nanosleep(&rest, NULL);
  }
  return unused;
}

typedef struct {
  double mean_ns;    /* of the pieces; 0 = none */
  uint64_t apart_ns; /* at most, from one to the next */
} pace;

static pace pace_of(uint64_t from_ns, uint64_t to_ns) {
  pace found = {0, 0};
  uint64_t last_ns = from_ns, count = 0;
  for (size_t i = 0; i < work_count && works[i].at_ns < to_ns; i++) {
    if (works[i].at_ns < from_ns) continue;
    found.mean_ns += (double)works[i].took_ns;
    count++;
    if (works[i].at_ns - last_ns > found.apart_ns) found.apart_ns = works[i].at_ns - last_ns;
    last_ns = works[i].at_ns;
  }
  if (to_ns - last_ns > found.apart_ns) found.apart_ns = to_ns - last_ns;
  if (count) found.mean_ns /= (double)count;
  return found;
}

/* A request counts when it was due inside the window. */
static bool counts(uint64_t at) { return at >= warm_ns && at < end_ns; }

static void note_error(const void *text, size_t length) {
  if (!first_error[0]) snprintf(first_error, sizeof first_error, "%.*s", (int)length, (char *)text);
}

/* ---- connections ---- */

typedef struct connection connection;

typedef struct stream {
  uint64_t due_ns;
  const request *request;
  connection *connection;
  uint32_t sent_bytes;
  int32_t id; /* 0 = it has not left */
  int grpc_status, http_status;
  bool got_body, says_when, given_up;
  struct stream *next; /* of those that wait, or that are free */
  struct stream *older, *newer;
} stream;

struct connection {
  int fd;
  nghttp2_session *session;
  bool ready, wants_write, ending, closed;
  /* Requests that have not left, and how many of the others are open. */
  stream *first_waiting, *last_waiting;
  uint32_t open_streams;
  uint8_t *out;
  size_t out_length, out_sent, out_room;
  /* HTTP/1.1: one request at a time */
  stream *only;
  char *in;
  size_t in_length, in_room;
};

static connection connections[MAX_CONNECTIONS];
static stream *free_streams;
static stream *oldest, *newest; /* of those that are neither answered nor given up */
static int poller;

static stream *take_stream(connection *c, const request *r, uint64_t due_ns) {
  stream *s = free_streams;
  if (s) free_streams = s->next;
  else s = allocate(1, sizeof *s);
  *s = (stream){.due_ns = due_ns, .request = r, .connection = c, .grpc_status = -1, .older = newest};
  if (newest) newest->newer = s;
  else oldest = s;
  newest = s;
  return s;
}

static void end_stream(stream *s) {
  if (s->older) s->older->newer = s->newer;
  else oldest = s->newer;
  if (s->newer) s->newer->older = s->older;
  else newest = s->older;
}

static void give_stream(stream *s) {
  s->next = free_streams;
  free_streams = s;
}

/* Leaves the list of those under way. What is answered too late was given up. */
static void finished(stream *s, int status, bool ok) {
  uint64_t now = now_ns();
  end_stream(s);
  open_now--;
  if (option.timeout_ns && now > s->due_ns + option.timeout_ns) {
    status = DEADLINE_EXCEEDED;
    ok = false;
  }
  if (now >= warm_ns && now < end_ns) {
    done_in_window++;
    ok_in_window += ok;
  }
  if (!counts(s->due_ns)) return;
  statuses[status >= 0 && status < MAX_STATUS ? status : MAX_STATUS]++;
  bool late = status == DEADLINE_EXCEEDED;
  count(ok ? &answered : late ? &expired : &refused, now - s->due_ns);
  pushbacks += s->says_when && !ok && !late;
  if (ok && class_count > 1) count(&by_class[s->request->class], now - s->due_ns);
}

static void append(connection *c, const void *bytes, size_t length) {
  if (c->out_length + length > c->out_room) {
    c->out_room = 2 * (c->out_length + length);
    if (!(c->out = realloc(c->out, c->out_room))) die("out of memory");
  }
  memcpy(c->out + c->out_length, bytes, length);
  c->out_length += length;
}

/* Where requests have deadlines it is opened again. */
static void lost(connection *c, const char *why) {
  bool again = option.timeout_ns && reconnects < MAX_RECONNECTS;
  if (now_ns() < stop_ns && !c->closed && !again)
    die("a connection was lost: %s %s", why, goodbye);
  c->closed = true;
}

static bool write_out(connection *c) {
  while (c->out_sent < c->out_length) {
    ssize_t n = write(c->fd, c->out + c->out_sent, c->out_length - c->out_sent);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (n < 0) {
      lost(c, strerror(errno));
      return false;
    }
    c->out_sent += (size_t)n;
  }
  bool all = c->out_sent == c->out_length;
  if (all) c->out_sent = c->out_length = 0;
  if (c->wants_write == all) {
    c->wants_write = !all;
    struct epoll_event event = {.events = EPOLLIN | (all ? 0 : EPOLLOUT), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
  }
  return all;
}


#define HEADER(n, v)                                                                     \
  (nghttp2_nv) {                                                                         \
    (uint8_t *)(n), (uint8_t *)(v), strlen(n), strlen(v),                                \
        NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE                     \
  }

static nghttp2_nv headers[8 + MAX_HEADERS];
static size_t headers_length;
static char time_left[16];

static void prepare_headers(void) {
  headers[headers_length++] = HEADER(":method", "POST");
  headers[headers_length++] = HEADER(":scheme", "http");
  headers[headers_length++] = HEADER(":path", option.path);
  headers[headers_length++] = HEADER(":authority", option.target);
  headers[headers_length++] = HEADER("content-type", "application/grpc");
  headers[headers_length++] = HEADER("te", "trailers");
  for (int i = 0; i < option.header_count; i++) {
    char *colon = strchr(option.headers[i] + 1, ':');
    if (!colon) die("expected NAME:VALUE, got %s", option.headers[i]);
    *colon = 0;
    headers[headers_length++] = HEADER(option.headers[i], colon + 1);
  }
  /* Last, as it is not the same twice. */
  if (option.timeout_ns) headers[headers_length++] = HEADER("grpc-timeout", time_left);
}

/* gRPC allows eight digits, and no zero. */
static void write_time_left(uint64_t due_ns) {
  uint64_t now = now_ns(), end = due_ns + option.timeout_ns;
  uint64_t left_us = now + 1000 < end ? (end - now) / 1000 : 1;
  const char *unit = left_us < 100000000 ? "u" : "m";
  if (left_us >= 100000000) left_us /= 1000;
  snprintf(time_left, sizeof time_left, "%llu%s", (unsigned long long)left_us, unit);
  headers[headers_length - 1].valuelen = strlen(time_left);
}

static ssize_t give_body(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t length,
                         uint32_t *flags, nghttp2_data_source *source, void *user) {
  stream *s = source->ptr;
  size_t left = s->request->length - s->sent_bytes;
  size_t n = left < length ? left : length;
  memcpy(buffer, s->request->bytes + s->sent_bytes, n);
  s->sent_bytes += (uint32_t)n;
  if (n == left) *flags |= NGHTTP2_DATA_FLAG_EOF;
  return (ssize_t)n;
}

static void send_http1(connection *c, stream *s) {
  char head[512];
  int length = snprintf(head, sizeof head,
                        "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %u\r\n\r\n",
                        option.path, option.target, s->request->length);
  c->only = s;
  append(c, head, (size_t)length);
  append(c, s->request->bytes, s->request->length);
}

/* Like clients of gRPC, opens no more streams than the peer allows, and tells how much time is left
 * when a request leaves. */
static bool send_next(connection *c) {
  stream *s = c->first_waiting;
  if (!s || !c->ready || c->ending ||
      c->open_streams >= nghttp2_session_get_remote_settings(
                                   c->session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS))
    return false;
  if (!(c->first_waiting = s->next)) c->last_waiting = NULL;
  if (option.timeout_ns) write_time_left(s->due_ns);
  nghttp2_data_provider body = {.source.ptr = s, .read_callback = give_body};
  s->id = nghttp2_submit_request(c->session, NULL, headers, headers_length, &body, s);
  if (s->id < 0) die("nghttp2: %s", nghttp2_strerror(s->id));
  c->open_streams++;
  return true;
}

/* Lets requests leave, and takes frames from nghttp2, until there are none or the kernel takes no
 * more. */
static void flush(connection *c) {
  if (c->closed || !write_out(c)) return;
  while (c->session) {
    const uint8_t *frame;
    ssize_t length = nghttp2_session_mem_send(c->session, &frame);
    if (length < 0) die("nghttp2: %s", nghttp2_strerror((int)length));
    if (length == 0 && send_next(c)) continue;
    if (length > 0) append(c, frame, (size_t)length);
    if ((length == 0 || c->out_length >= FLUSH_BYTES) && (!write_out(c) || length == 0)) return;
  }
}

static void submit(connection *c, const request *r, uint64_t due_ns) {
  stream *s = take_stream(c, r, due_ns);
  if (open_now++ == 0) busy_since_ns = due_ns;
  sent++;
  if (option.http1) {
    send_http1(c, s);
    return;
  }
  if (c->last_waiting) c->last_waiting->next = s;
  else c->first_waiting = s;
  c->last_waiting = s;
}

/* Closed loop: an answer makes room for the next request on the same connection. */
static void submit_next(connection *c) {
  uint64_t now = now_ns();
  if (schedule || now >= end_ns || sent >= MAX_SENT || c->closed) return;
  submit(c, &requests[next_request], now);
  next_request = (next_request + 1) % request_count;
}

/* As a client of gRPC does at a call's deadline. What it hears of it later is no answer. */
static void give_up(stream *s) {
  connection *c = s->connection;
  finished(s, DEADLINE_EXCEEDED, false);
  if (s->id) {
    s->given_up = true;
    nghttp2_submit_rst_stream(c->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_CANCEL);
    return;
  }
  held += counts(s->due_ns);
  if (c->first_waiting != s) die("a younger request was due first");
  if (!(c->first_waiting = s->next)) c->last_waiting = NULL;
  give_stream(s);
  submit_next(c);
}

static void give_up_late(void) {
  if (!option.timeout_ns) return;
  bool touched[MAX_CONNECTIONS] = {false};
  for (uint64_t now = now_ns(); oldest && oldest->due_ns + option.timeout_ns < now;) {
    touched[oldest->connection - connections] = true;
    give_up(oldest);
  }
  for (int i = 0; i < option.connections; i++)
    if (touched[i]) flush(&connections[i]);
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_length, const uint8_t *value, size_t length, uint8_t flags,
                     void *user) {
  stream *s = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
  if (!s) return 0;
  if (name_length == 11 && !memcmp(name, "grpc-status", 11)) s->grpc_status = atoi((char *)value);
  else if (name_length == 7 && !memcmp(name, ":status", 7)) s->http_status = atoi((char *)value);
  else if (name_length == 12 && !memcmp(name, "grpc-message", 12)) note_error(value, length);
  else if ((name_length == 22 && !memcmp(name, "grpc-retry-pushback-ms", 22)) ||
           (name_length == 19 && !memcmp(name, "sits-retry-after-ms", 19)))
    s->says_when = true;
  return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                   size_t length, void *user) {
  stream *s = nghttp2_session_get_stream_user_data(session, id);
  if (s) s->got_body = true;
  body_bytes += length;
  return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t error, void *user) {
  stream *s = nghttp2_session_get_stream_user_data(session, id);
  if (!s) return 0;
  ((connection *)user)->open_streams--;
  if (s->given_up) {
    give_stream(s);
    submit_next(user);
    return 0;
  }
  note_stall(now_ns());
  int status = s->grpc_status >= 0 ? s->grpc_status : s->http_status >= 400 ? s->http_status : 2;
  finished(s, status, status == 0 && s->got_body);
  give_stream(s);
  submit_next(user);
  return 0;
}

/* How many streams a server allows, and why it ends a connection. */
static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
  connection *c = user;
  if (frame->hd.type == NGHTTP2_SETTINGS) c->ready = true;
  if (frame->hd.type != NGHTTP2_GOAWAY) return 0;
  c->ending = true;
  const nghttp2_goaway *why = &frame->goaway;
  snprintf(goodbye, sizeof goodbye, "%s %.*s", nghttp2_http2_strerror(why->error_code),
           (int)why->opaque_data_len, (char *)why->opaque_data);
  return 0;
}

static void open_session(connection *c) {
  nghttp2_session_callbacks *callbacks;
  nghttp2_session_callbacks_new(&callbacks);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
  nghttp2_session_client_new(&c->session, callbacks, c);
  nghttp2_session_callbacks_del(callbacks);
  nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW_BYTES},
                                       {NGHTTP2_SETTINGS_ENABLE_PUSH, 0}};
  nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, settings, 2);
  nghttp2_session_set_local_window_size(c->session, NGHTTP2_FLAG_NONE, 0, WINDOW_BYTES);
}

static void open_connection(connection *c) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  char host[64];
  const char *colon = strchr(option.target, ':');
  if (!colon || (size_t)(colon - option.target) >= sizeof host) die("expected HOST:PORT");
  snprintf(host, sizeof host, "%.*s", (int)(colon - option.target), option.target);
  address.sin_port = htons((uint16_t)atoi(colon + 1));
  if (inet_pton(AF_INET, host, &address.sin_addr) != 1 ||
      ntohl(address.sin_addr.s_addr) >> 24 != 127)
    die("%s is not this machine: only 127.0.0.0/8 may be loaded", option.target);
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0)
    die("%s: %s", option.target, strerror(errno));
  int one = 1;
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
  if (!option.http1) open_session(c);
}

/* As clients of gRPC do. What had left is lost, the rest takes the new connection. */
static void reconnect(connection *c) {
  reconnects++;
  close(c->fd);
  c->ready = c->wants_write = c->ending = c->closed = false;
  c->out_length = c->out_sent = c->open_streams = 0;
  for (stream *s = oldest, *newer; s; s = newer) {
    newer = s->newer;
    if (s->connection != c || !s->id) continue;
    finished(s, UNAVAILABLE, false);
    give_stream(s);
    submit_next(c);
  }
  nghttp2_session_del(c->session);
  open_connection(c);
  flush(c);
}

/* Whole answers in `in`: a head, a Content-Length, a body. */
static void parse_http1(connection *c) {
  char *head_end;
  while (c->only && (head_end = memmem(c->in, c->in_length, "\r\n\r\n", 4))) {
    *head_end = 0;
    char *field = strcasestr(c->in, "\r\ncontent-length:");
    if (!field) die("an answer without Content-Length");
    size_t head = (size_t)(head_end - c->in) + 4, body = strtoul(field + 17, NULL, 10);
    if (c->in_length < head + body) {
      *head_end = '\r';
      return;
    }
    int status = atoi(c->in + 9);
    bool ok = status == 200 && body > 0;
    if (!ok) note_error(c->in, strcspn(c->in, "\r"));
    stream *s = c->only;
    c->only = NULL;
    body_bytes += body;
    note_stall(now_ns());
    finished(s, ok ? 0 : status, ok);
    give_stream(s);
    c->in_length -= head + body;
    memmove(c->in, c->in + head + body, c->in_length);
    submit_next(c);
  }
}

static void receive(connection *c) {
  static uint8_t buffer[READ_BYTES];
  ssize_t n = read(c->fd, buffer, sizeof buffer);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    lost(c, n ? strerror(errno) : "closed by the server");
    epoll_ctl(poller, EPOLL_CTL_DEL, c->fd, NULL);
    return;
  }
  if (option.http1) {
    if (c->in_length + (size_t)n + 1 > c->in_room) {
      c->in_room = 2 * (c->in_length + (size_t)n + 1);
      if (!(c->in = realloc(c->in, c->in_room))) die("out of memory");
    }
    memcpy(c->in + c->in_length, buffer, (size_t)n);
    c->in_length += (size_t)n;
    c->in[c->in_length] = 0;
    parse_http1(c);
    return;
  }
  ssize_t used = nghttp2_session_mem_recv(c->session, buffer, (size_t)n);
  if (used < 0) lost(c, nghttp2_strerror((int)used));
}

/* ---- open loop ---- */

static int timer;

static uint64_t due_of(size_t i) { return start_ns + (uint64_t)(schedule[i].at_s * 1e9); }

static void submit_due(void) {
  uint64_t now = now_ns();
  bool touched[MAX_CONNECTIONS] = {false};
  for (uint64_t due; next_arrival < arrival_count && (due = due_of(next_arrival)) <= now &&
                     due < end_ns;) {
    int to = (int)(next_arrival % (size_t)option.connections);
    const request *r = &requests[schedule[next_arrival++].request];
    if (counts(due)) count(&lag, now - due);
    if (open_now >= (uint64_t)option.max_open || sent >= MAX_SENT) {
      unsent += counts(due);
      continue;
    }
    submit(&connections[to], r, due);
    touched[to] = true;
  }
  for (int i = 0; i < option.connections; i++)
    if (touched[i]) flush(&connections[i]);
  if (next_arrival >= arrival_count) return;
  uint64_t at = due_of(next_arrival);
  struct itimerspec when = {.it_value = {.tv_sec = (time_t)(at / 1000000000ULL),
                                         .tv_nsec = (long)(at % 1000000000ULL)}};
  timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* ---- CPU time of the servers ---- */

static int pid_count;
static int pids[MAX_PIDS];

static void read_pids(void) {
  char *copy = option.pids ? strdup(option.pids) : NULL;
  for (char *p = copy ? strtok(copy, ",") : NULL; p; p = strtok(NULL, ",")) {
    if (pid_count == MAX_PIDS) die("more than %d processes", MAX_PIDS);
    pids[pid_count++] = atoi(p);
  }
  free(copy);
}

/* Seconds in user and kernel mode; -1 when the process is gone. */
static double cpu_of(int pid) {
  char name[64], line[1024];
  snprintf(name, sizeof name, "/proc/%d/stat", pid);
  FILE *file = fopen(name, "r");
  if (!file) return -1;
  size_t n = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  line[n] = 0;
  char *after = strrchr(line, ')');
  unsigned long user = 0, kernel = 0;
  if (!after || sscanf(after + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                       &kernel) != 2)
    return -1;
  return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double own_cpu(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static struct {
  double own_s, pid_s[MAX_PIDS];
} marks[2];

static void mark(int which) {
  marks[which].own_s = own_cpu();
  for (int i = 0; i < pid_count; i++) marks[which].pid_s[i] = cpu_of(pids[i]);
}

/* ---- life ---- */

static void parse_options(int argc, char **argv, const char **request_file,
                          const char **schedule_file) {
  static const struct option known[] = {
      {"target", 1, 0, 't'},   {"path", 1, 0, 'p'},      {"requests", 1, 0, 'r'},
      {"schedule", 1, 0, 's'}, {"in-flight", 1, 0, 'n'}, {"connections", 1, 0, 'c'},
      {"warm-up", 1, 0, 'w'},  {"duration", 1, 0, 'd'},  {"drain", 1, 0, 'D'},
      {"header", 1, 0, 'h'},   {"timeout-ms", 1, 0, 'T'}, {"max-open", 1, 0, 'm'},
      {"pids", 1, 0, 'P'},     {"http1", 0, 0, '1'},     {"stall-ms", 1, 0, 'S'},
      {0, 0, 0, 0}};
  int o;
  while ((o = getopt_long(argc, argv, "", known, NULL)) != -1) switch (o) {
      case 't': option.target = optarg; break;
      case 'p': option.path = optarg; break;
      case 'r': *request_file = optarg; break;
      case 's': *schedule_file = optarg; break;
      case 'n': option.in_flight = atoi(optarg); break;
      case 'c': option.connections = atoi(optarg); break;
      case 'w': option.warm_up_s = atof(optarg); break;
      case 'd': option.duration_s = atof(optarg); break;
      case 'D': option.drain_s = atof(optarg); break;
      case 'h':
        if (option.header_count == MAX_HEADERS) die("more than %d headers", MAX_HEADERS);
        option.headers[option.header_count++] = optarg;
        break;
      case 'T': option.timeout_ns = (uint64_t)(atof(optarg) * 1e6); break;
      case 'm': option.max_open = atoi(optarg); break;
      case 'P': option.pids = optarg; break;
      case '1': option.http1 = true; break;
      case 'S': option.stall_ms = atof(optarg); break;
      default: exit(2);
    }
}

static void check_options(const char *request_file) {
  if (!option.target || !request_file) die("--target and --requests are needed");
  if (!schedule == !option.in_flight) die("one of --in-flight and --schedule is needed");
  if (option.http1 && (schedule || option.timeout_ns))
    die("--http1 has no open loop and no deadlines");
  if (option.http1) option.connections = option.in_flight;
  if (option.connections < 1 || option.connections > MAX_CONNECTIONS)
    die("--connections: 1 to %d", MAX_CONNECTIONS);
  if (option.warm_up_s + option.duration_s + option.drain_s > MAX_SECONDS)
    die("more than %g s in all", MAX_SECONDS);
}

/* Until the next deadline, at most 10 ms. */
static int wait_ms(void) {
  if (!option.timeout_ns || !oldest) return 10;
  uint64_t now = now_ns(), end = oldest->due_ns + option.timeout_ns;
  return end <= now ? 0 : end - now >= 9000000 ? 10 : (int)((end - now) / 1000000) + 1;
}

static void loop(void) {
  struct epoll_event events[64];
  bool warm = false, over = false;
  for (;;) {
    uint64_t now = now_ns();
    if (!warm && now >= warm_ns) { warm = true; mark(0); }
    if (!over && now >= end_ns) {
      over = true;
      mark(1);
      if (schedule) submit_due(); /* what was due, however late we are */
    }
    if (now >= stop_ns || (over && open_now == 0)) return;
    int n = epoll_wait(poller, events, 64, wait_ms());
    for (int i = 0; i < n; i++) {
      connection *c = events[i].data.ptr;
      if (!c) {
        uint64_t expirations;
        if (read(timer, &expirations, 8) == 8) submit_due();
        continue;
      }
      if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
      flush(c);
    }
    give_up_late();
    for (int i = 0; option.timeout_ns && i < option.connections; i++) {
      connection *c = &connections[i];
      if ((c->closed || (c->ending && !c->open_streams)) && now < end_ns) reconnect(c);
    }
  }
}

static void start(void) {
  start_ns = now_ns();
  warm_ns = start_ns + (uint64_t)(option.warm_up_s * 1e9);
  end_ns = warm_ns + (uint64_t)(option.duration_s * 1e9);
  stop_ns = end_ns + (uint64_t)(option.drain_s * 1e9);
  if (schedule) {
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &event);
    submit_due();
  }
  for (int i = 0; i < option.in_flight; i++) submit_next(&connections[i % option.connections]);
  for (int i = 0; i < option.connections; i++) flush(&connections[i]);
}

static void print_statuses(void) {
  printf("\"statuses\":{");
  const char *comma = "";
  for (int i = 0; i <= MAX_STATUS; i++)
    if (statuses[i]) {
      printf("%s\"%d\":%llu", comma, i, (unsigned long long)statuses[i]);
      comma = ",";
    }
  printf("}");
}

static void print_text(const char *name, const char *text) {
  printf("\"%s\":\"", name);
  for (; *text; text++) putchar(*text < ' ' || *text == '"' || *text == '\\' ? ' ' : *text);
  printf("\"");
}

/* `slowed`: how many times longer than usual the same work took meanwhile; `apart_ms`: how long
 * the thread that does it did not come to run, at most. */
static void print_stalls(void) {
  histogram *usual = allocate(1, sizeof *usual);
  for (size_t i = 0; i < work_count; i++)
    if (counts(works[i].at_ns)) count(usual, works[i].took_ns);
  print_histogram("work", usual);
  printf(",\"stalls\":[");
  double median = percentile(usual, 0.5);
  for (size_t i = 0; i < stall_count; i++) {
    pace meanwhile = pace_of(stalls[i].from_ns, stalls[i].to_ns);
    printf("%s{\"at_s\":%.6f,\"ms\":%.6g,\"open\":%llu,\"slowed\":%.4g,\"apart_ms\":%.6g}",
           i ? "," : "", (double)(stalls[i].from_ns - start_ns) / 1e9,
           (double)(stalls[i].to_ns - stalls[i].from_ns) / 1e6,
           (unsigned long long)stalls[i].open, median > 0 ? meanwhile.mean_ns / median : 0.0,
           (double)meanwhile.apart_ns / 1e6);
  }
  printf("],");
  free(usual);
}

static void print_results(void) {
  printf("{\"seconds\":%.6f,\"done\":%llu,\"ok\":%llu,\"per_s\":%.6g,", option.duration_s,
         (unsigned long long)done_in_window, (unsigned long long)ok_in_window,
         (double)ok_in_window / option.duration_s);
  printf("\"open\":%llu,\"unsent\":%llu,\"held\":%llu,\"reconnects\":%llu,",
         (unsigned long long)open_now, (unsigned long long)unsent, (unsigned long long)held,
         (unsigned long long)reconnects);
  printf("\"pushbacks\":%llu,\"body_bytes\":%llu,", (unsigned long long)pushbacks,
         (unsigned long long)body_bytes);
  print_text("goodbye", goodbye);
  printf(",");
  print_text("first_error", first_error);
  printf(",");
  print_statuses();
  printf(",\"own_cpu_s\":%.4f,\"cpu_s\":[", marks[1].own_s - marks[0].own_s);
  for (int i = 0; i < pid_count; i++) {
    double before = marks[0].pid_s[i], after = marks[1].pid_s[i];
    printf("%s%.2f", i ? "," : "", before < 0 || after < 0 ? -1.0 : after - before);
  }
  printf("],");
  print_histogram("answered", &answered);
  printf(",");
  print_histogram("refused", &refused);
  printf(",");
  print_histogram("expired", &expired);
  printf(",");
  print_histogram("lag", &lag);
  printf(",");
  print_stalls();
  printf("\"classes\":[");
  for (uint32_t i = 0; class_count > 1 && i < class_count; i++) {
    printf("%s{", i ? "," : "");
    print_histogram("answered", &by_class[i]);
    printf("}");
  }
  printf("]}\n");
}

int main(int argc, char **argv) {
  const char *request_file = NULL, *schedule_file = NULL;
  parse_options(argc, argv, &request_file, &schedule_file);
  if (request_file) read_requests(request_file);
  if (schedule_file) read_schedule(schedule_file);
  check_options(request_file);
  by_class = allocate(class_count, sizeof *by_class);
  read_pids();
  prepare_headers();
  signal(SIGPIPE, SIG_IGN); /* a lost connection shows in errno */
  poller = epoll_create1(0);
  for (int i = 0; i < option.connections; i++) open_connection(&connections[i]);
  start();
  if (option.stall_ms > 0 && pthread_create(&worker, NULL, work, NULL) != 0) die("no thread");
  loop();
  if (option.stall_ms > 0) {
    atomic_store(&worker_over, true);
    pthread_join(worker, NULL);
  }
  print_results();
  return 0;
}
