/* A tuner plugin for NCCL that follows a file of rules.
 *
 * NCCL asks its tuner before every collective. This one reads the file that NCCL_TUNER_CONFIG_FILE names, when a
 * communicator is made, and answers with the first rule that matches: its algorithm and protocol get cost 0, and its
 * channels are taken. Where no rule matches, or NCCL cannot use what the rule names, NCCL decides as without a plugin.
 *
 * The layouts below are those of NCCL's public tuner interface, versions 3 (NCCL 2.21 to 2.23), 4 (2.24 to 2.27) and
 * 5 (2.28 and later): NVIDIA/nccl, src/include/plugin/tuner/. One build serves them all. No header of NCCL is needed.
 *
 * A row of the file: collective,least bytes,most bytes,algorithm,protocol,channels,nodes,ranks[,calls in the
 * group[,registered buffers]]; -1 stands for any, and for NCCL's own number of channels. '#' begins a comment.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5 };
enum { LOG_WARN = 2, LOG_INFO = 3, SUBSYSTEM_TUNING = 64 };
enum { FIELDS_LEAST = 8, FIELDS_MOST = 10, LINE_MOST = 512, CHANNELS_MOST = 64, ANY = -1 };

typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

static const char *const COLLECTIVES[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
static const char *const ALGORITHMS[] = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
static const char *const PROTOCOLS[] = {"ll", "ll128", "simple"};
#define COUNT(names) ((int)(sizeof(names) / sizeof(*(names))))

typedef struct {
  uint64_t least, most;
  int collective, algorithm, protocol, channels, nodes, ranks, calls, registered;
  int line, used;
} rule_t;

typedef struct {
  rule_t *rules;
  int count, capacity;
  size_t nodes, ranks;
  logger_t log;
  char *path; /* a copy: the environment may change while the communicator lives */
} context_t;

/* Logs a line that names the file; a warning is shown whatever NCCL_DEBUG says but NONE. */
static void say(const context_t *context, int level, const char *format, ...) {
  char text[1024];
  va_list arguments;
  if (context->log == NULL) return;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  context->log(level, SUBSYSTEM_TUNING, __FILE__, __LINE__, "TUNER/blinksim: %s", text);
}

static char *trimmed(char *text) {
  char *end;
  while (*text == ' ' || *text == '\t') text++;
  end = text + strlen(text);
  while (end > text && strchr(" \t\r\n", end[-1]) != NULL) end--;
  *end = '\0';
  return text;
}

static int index_of(const char *name, const char *const *names, int count) {
  for (int i = 0; i < count; i++)
    if (strcmp(name, names[i]) == 0) return i;
  return -1;
}

/* A whole number between `least` and `most`; 0 if the text is none. */
static int number(const char *text, long long least, long long most, long long *found) {
  char *end;
  errno = 0;
  *found = strtoll(text, &end, 10);
  return *text != '\0' && *end == '\0' && errno == 0 && *found >= least && *found <= most;
}

/* What is wrong with the fields of a row; NULL if nothing, and then `rule` holds them. */
static const char *read_fields(char **fields, int count, rule_t *rule) {
  long long values[6] = {ANY, ANY, ANY, ANY, ANY, ANY}, least, most;
  const long long highest[6] = {CHANNELS_MOST, INT32_MAX, INT32_MAX, INT32_MAX, 1, 0};
  if (count < FIELDS_LEAST || count > FIELDS_MOST) return "a row has 8 to 10 fields";
  rule->collective = index_of(fields[0], COLLECTIVES, COUNT(COLLECTIVES));
  rule->algorithm = index_of(fields[3], ALGORITHMS, COUNT(ALGORITHMS));
  rule->protocol = index_of(fields[4], PROTOCOLS, COUNT(PROTOCOLS));
  if (rule->collective < 0) return "unknown collective";
  if (rule->algorithm < 0) return "unknown algorithm";
  if (rule->protocol < 0) return "unknown protocol";
  if (!number(fields[1], 0, INT64_MAX, &least) || !number(fields[2], 0, INT64_MAX, &most) || least > most)
    return "the sizes are not two whole numbers of bytes, the smaller first";
  for (int i = 0; i + 5 < count; i++)
    if (!number(fields[5 + i], ANY, highest[i], &values[i]) || (values[i] == 0 && i < 4))
      return "channels, nodes, ranks and calls are whole numbers or -1, registered buffers 0, 1 or -1";
  rule->least = (uint64_t)least;
  rule->most = (uint64_t)most;
  rule->channels = (int)values[0];
  rule->nodes = (int)values[1];
  rule->ranks = (int)values[2];
  rule->calls = (int)values[3];
  rule->registered = (int)values[4];
  return NULL;
}

static int add(context_t *context, const rule_t *rule) {
  if (context->count == context->capacity) {
    int capacity = context->capacity ? 2 * context->capacity : 32;
    rule_t *rules = realloc(context->rules, (size_t)capacity * sizeof *rules);
    if (rules == NULL) return SYSTEM_ERROR;
    context->rules = rules;
    context->capacity = capacity;
  }
  context->rules[context->count++] = *rule;
  return SUCCESS;
}

static int read_line(context_t *context, char *line, int number_of_line) {
  char *fields[FIELDS_MOST + 1], *comment = strchr(line, '#'), *rest;
  const char *wrong;
  rule_t rule;
  int count = 0;
  if (comment != NULL) *comment = '\0';
  rest = trimmed(line);
  if (*rest == '\0' || strncmp(rest, "collective_type", 15) == 0) return SUCCESS;
  while (rest != NULL && count <= FIELDS_MOST) {
    char *comma = strchr(rest, ',');
    if (comma != NULL) *comma = '\0';
    fields[count++] = trimmed(rest);
    rest = comma != NULL ? comma + 1 : NULL;
  }
  memset(&rule, 0, sizeof rule);
  wrong = read_fields(fields, count, &rule);
  if (wrong != NULL) {
    say(context, LOG_WARN, "%s:%d: %s", context->path, number_of_line, wrong);
    return INVALID_USAGE;
  }
  rule.line = number_of_line;
  return add(context, &rule);
}

static int read_file(context_t *context) {
  char line[LINE_MOST];
  int result = SUCCESS, number_of_line = 0;
  FILE *file = fopen(context->path, "r");
  if (file == NULL) {
    say(context, LOG_WARN, "NCCL_TUNER_CONFIG_FILE=%s: %s", context->path, strerror(errno));
    return INVALID_USAGE;
  }
  while (result == SUCCESS && fgets(line, sizeof line, file) != NULL) {
    number_of_line++;
    if (strlen(line) == sizeof line - 1 && line[sizeof line - 2] != '\n') {
      say(context, LOG_WARN, "%s:%d: a row longer than %d characters", context->path, number_of_line, LINE_MOST - 2);
      result = INVALID_USAGE;
    } else {
      result = read_line(context, line, number_of_line);
    }
  }
  fclose(file);
  return result;
}

static int finish(void *opaque) {
  context_t *context = opaque;
  if (context != NULL) {
    free(context->rules);
    free(context->path);
  }
  free(context);
  return SUCCESS;
}

static int begin(void **opaque, size_t ranks, size_t nodes, logger_t log) {
  context_t *context = calloc(1, sizeof *context);
  const char *path = getenv("NCCL_TUNER_CONFIG_FILE");
  int result = SUCCESS;
  if (path == NULL) path = "";
  if (context == NULL || (context->path = malloc(strlen(path) + 1)) == NULL) {
    free(context);
    return SYSTEM_ERROR;
  }
  strcpy(context->path, path);
  context->ranks = ranks;
  context->nodes = nodes;
  context->log = log;
  if (*path == '\0')
    say(context, LOG_WARN, "no rules: NCCL_TUNER_CONFIG_FILE is not set, NCCL decides as without a plugin");
  else
    result = read_file(context);
  if (result != SUCCESS) {
    finish(context);
    return result;
  }
  if (*path != '\0')
    say(context, LOG_INFO, "%d rules of %s for %zu ranks on %zu nodes", context->count, context->path, ranks, nodes);
  *opaque = context;
  return SUCCESS;
}

static int matches(const rule_t *rule, const context_t *context, int collective, size_t bytes, int calls,
                   int registered) {
  return rule->collective == collective && bytes >= rule->least && bytes <= rule->most &&
         (rule->nodes == ANY || (size_t)rule->nodes == context->nodes) &&
         (rule->ranks == ANY || (size_t)rule->ranks == context->ranks) &&
         (rule->calls == ANY || rule->calls == calls) &&
         (rule->registered == ANY || registered == ANY || rule->registered == (registered != 0));
}

/* costs: NCCL hands over a matrix of `algorithms` rows and `protocols` columns as if it were float **; -1 where it
 * cannot use the two together. */
static int choose(void *opaque, int collective, size_t bytes, int calls, float **costs, int algorithms, int protocols,
                  int registered, int *channels) {
  const context_t *context = opaque;
  for (int i = 0; context != NULL && i < context->count; i++) {
    rule_t *rule = &context->rules[i];
    float *cost;
    if (!matches(rule, context, collective, bytes, calls, registered)) continue;
    if (rule->algorithm >= algorithms || rule->protocol >= protocols) continue;
    cost = (float *)costs + (size_t)rule->algorithm * (size_t)protocols + rule->protocol;
    if (*cost < 0) {
      if (!(rule->used & 2))
        say(context, LOG_INFO, "%s:%d: NCCL cannot use %s with %s for %s here", context->path, rule->line,
            ALGORITHMS[rule->algorithm], PROTOCOLS[rule->protocol], COLLECTIVES[collective]);
      rule->used |= 2;
      continue;
    }
    *cost = 0;
    if (rule->channels != ANY) *channels = rule->channels;
    if (!(rule->used & 1))
      say(context, LOG_INFO, "%s:%d in force: %s of %zu bytes by %s, %s, %d channels", context->path, rule->line,
          COLLECTIVES[collective], bytes, ALGORITHMS[rule->algorithm], PROTOCOLS[rule->protocol], rule->channels);
    rule->used |= 1;
    return SUCCESS;
  }
  return SUCCESS;
}

/* --- the versions of the interface --------------------------------------------------------------------------------*/

static int init_v3(size_t ranks, size_t nodes, logger_t log, void **opaque) { return begin(opaque, ranks, nodes, log); }

static int choose_v3(void *opaque, int collective, size_t bytes, int calls, float **costs, int algorithms,
                     int protocols, int *channels) {
  return choose(opaque, collective, bytes, calls, costs, algorithms, protocols, ANY, channels);
}

static int init_v5(void **opaque, uint64_t id, size_t ranks, size_t nodes, logger_t log, void *domains,
                   void *constants) {
  (void)id, (void)domains, (void)constants;
  return begin(opaque, ranks, nodes, log);
}

typedef struct {
  const char *name;
  int (*init)(size_t, size_t, logger_t, void **);
  int (*choose)(void *, int, size_t, int, float **, int, int, int *);
  int (*finish)(void *);
} tuner_v3;

typedef struct {
  const char *name;
  int (*init)(size_t, size_t, logger_t, void **);
  int (*choose)(void *, int, size_t, int, float **, int, int, int, int *);
  int (*finish)(void *);
} tuner_v4;

typedef struct {
  const char *name;
  int (*init)(void **, uint64_t, size_t, size_t, logger_t, void *, void *);
  int (*choose)(void *, int, size_t, int, float **, int, int, int, int *);
  int (*finish)(void *);
} tuner_v5;

#define VISIBLE __attribute__((visibility("default")))
VISIBLE const tuner_v3 ncclTunerPlugin_v3 = {"blinksim", init_v3, choose_v3, finish};
VISIBLE const tuner_v4 ncclTunerPlugin_v4 = {"blinksim", init_v3, choose, finish};
VISIBLE const tuner_v5 ncclTunerPlugin_v5 = {"blinksim", init_v5, choose, finish};
