// Interprets the tables of tables.py: one launch per GPU and collective, one thread block per queue and
// slice. Needs no headers. The compiler is told ELEMENT (the stored type), WIDE (what is computed with), CONVERT
// (0 none, 1 IEEE half, 2 bfloat16, both kept as unsigned short), REDUCE (0 sum, 1 prod, 2 min, 3 max) and PACKETS (1 if
// programs are of packets). Without packets, the last warp of a block moves no data and raises the flags (struct Mail).
// All blocks of all GPUs must be resident at once; the host checks that. A wait that takes too long is recorded in
// `error`, and then every block of that GPU leaves at its next wait, so that no launch runs forever.

typedef unsigned long long u64;
typedef long long i64;
struct alignas(16) Cell { u64 w[2]; };  // an eighth of a line

#ifndef BLINKSIM_HOST  // a host build brings these along, with a thread for the movers of a block and one for its posters
#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
#define SHARED __shared__
#define SHARED_WITH_POSTERS(type, name) __shared__ type name
#define KERNEL extern "C" __global__ void __launch_bounds__(512, 1)

struct alignas(16) Line { unsigned int w[4]; };

// The data is written by other GPUs while the kernel runs: the read-only path and L1 must not be used for it.
DEVICE Line load_line(const void* p) {
  Line v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p));
  return v;
}
DEVICE void store_line(void* p, Line v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};"
               :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}
DEVICE u64 load_acquire(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
// Releases what the whole block wrote before its last barrier, not only this thread (PTX ISA, causality order).
DEVICE void store_release(u64* p, u64 v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(p), "l"(v) : "memory");
}
constexpr int WARP = 32;
// Threads of a block that do not move data: where flags go behind the data, a warp that raises them.
constexpr int POSTERS = PACKETS ? 0 : WARP;
DEVICE int movers() { return blockDim.x - POSTERS; }
// Barriers of the threads that move data. Those of packets may leave one by one, and then are not waited for: that takes
// a barrier without a number of threads.
DEVICE void sync_movers() {
  if (PACKETS) __syncthreads();
  else asm volatile("bar.sync 1, %0;" :: "r"(movers()) : "memory");
}
DEVICE int sync_and(int mine) {
  if (PACKETS) return __syncthreads_and(mine);
  int all;
  asm volatile("{\n .reg .pred p, q;\n setp.ne.s32 p, %1, 0;\n bar.red.and.pred q, 1, %2, p;\n selp.s32 %0, 1, 0, q;\n}"
               : "=r"(all) : "r"(mine), "r"(movers()) : "memory");
  return all;
}
// Of all threads of the block.
DEVICE void sync_all() { __syncthreads(); }
// Between threads of a block.
DEVICE unsigned int read_shared(const unsigned int* p) {
  unsigned int v;
  asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
DEVICE void write_shared(unsigned int* p, unsigned int v) {
  asm volatile("st.release.cta.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
DEVICE void rest() { __nanosleep(20); }
// What was stored before the fence, by this thread or by those that it has heard of, is there before what is stored after.
DEVICE void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
DEVICE void store_fenced(u64* p, u64 v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(p), "l"(v) : "memory"); }
// A warp moves four lines of an inbox at once: eight threads a cell each, and a line is never seen in parts. Whether
// the launch that it belongs to is this one, the last of the eight can tell; `all_of` asks for the whole warp.
DEVICE bool load_cell(const char* line, int slot, u64 launch, Cell& v) {
  asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.w[0]), "=l"(v.w[1]) : "l"(line + 16 * slot));
  return slot != 7 || v.w[1] == launch;
}
DEVICE void store_cell(char* line, int slot, Cell v) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};"
               :: "l"(line + 16 * slot), "l"(v.w[0]), "l"(v.w[1]) : "memory");
}
DEVICE bool all_of(bool mine) { return __all_sync(0xffffffffu, mine); }
// Lines go as one only if the threads of a warp load and store them by the same instruction.
DEVICE void together() { __syncwarp(); }
// What the first thread of the warp has, and knows.
DEVICE unsigned int of_first(unsigned int mine) {
  mine = __shfl_sync(0xffffffffu, mine, 0);
  __syncwarp();
  return mine;
}
DEVICE u64 cycles() {
  u64 t;
  asm volatile("mov.u64 %0, %clock64;" : "=l"(t));
  return t;
}
DEVICE u64 nanoseconds() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
DEVICE float from_half(unsigned short h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
DEVICE unsigned short to_half(float f) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
DEVICE float from_bits(unsigned int b) { return __uint_as_float(b); }
DEVICE unsigned int to_bits(float f) { return __float_as_uint(f); }
#endif

DEVICE int sync_or(int mine) { return !sync_and(!mine); }

#if CONVERT == 1
DEVICE float widen(unsigned short v) { return from_half(v); }
DEVICE unsigned short narrow(float v) { return to_half(v); }
#elif CONVERT == 2
DEVICE float widen(unsigned short v) { return from_bits((unsigned int)v << 16); }
DEVICE unsigned short narrow(float v) {
  unsigned int b = to_bits(v);
  return v != v ? 0x7fff : (unsigned short)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
#else
DEVICE WIDE widen(ELEMENT v) { return (WIDE)v; }
DEVICE ELEMENT narrow(WIDE v) { return (ELEMENT)v; }
#endif

DEVICE WIDE combine(WIDE a, WIDE b) {
#if REDUCE == 0
  return a + b;
#elif REDUCE == 1
  return a * b;
#elif REDUCE == 2
  return b < a ? b : a;
#else
  return a < b ? b : a;
#endif
}

constexpr int MOST_SOURCES = 8, MOST_TARGETS = 32;
constexpr int PER_LINE = 16 / sizeof(ELEMENT);
union Pack { Line line; ELEMENT e[PER_LINE]; };

// One round: lines at, at + stride, … of N sources, U of them, all in flight at once. WHOLE: all U are there.
template <int N, int U, bool WHOLE>
DEVICE void move_round(char* const* source, char* const* target, int targets, i64 at, int left, i64 stride) {
  Pack v[N][U];
#pragma unroll
  for (int s = 0; s < N; ++s)
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (WHOLE || u < left) v[s][u].line = load_line(source[s] + 16 * (at + u * stride));
  if (N > 1) {
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
      for (int e = 0; e < PER_LINE; ++e) {
        WIDE total = widen(v[0][u].e[e]);
#pragma unroll
        for (int s = 1; s < N; ++s) total = combine(total, widen(v[s][u].e[e]));
        v[0][u].e[e] = narrow(total);
      }
  }
  for (int t = 0; t < targets; ++t)
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (WHOLE || u < left) store_line(target[t] + 16 * (at + u * stride), v[0][u].line);
}

// Reduces `lines` lines of N sources and stores them to every target; U lines of each source are in flight per thread.
// What is left at the end as well: line by line, it would cost a trip to memory each.
template <int N, int U>
DEVICE void move_lines(char* const* source, char* const* target, int targets, i64 lines) {
  const i64 stride = movers();
  i64 at = threadIdx.x;
  for (; at + (U - 1) * stride < lines; at += U * stride)
    move_round<N, U, true>(source, target, targets, at, U, stride);
  constexpr int REST = N == 1 ? U / 2 : 1;  // more would not fit into registers
  for (; at < lines; at += REST * stride)
    move_round<N, REST, REST == 1>(source, target, targets, at, (int)((lines - at + stride - 1) / stride), stride);
}

// The same, element by element: what is left over, and places that differ in their distance from a 16-byte boundary.
DEVICE void move_elements(char* const* source, int sources, char* const* target, int targets, i64 begin, i64 end) {
  for (i64 at = begin + threadIdx.x; at < end; at += movers()) {
    ELEMENT out = ((const volatile ELEMENT*)source[0])[at];
    if (sources > 1) {
      WIDE total = widen(out);
      for (int s = 1; s < sources; ++s) total = combine(total, widen(((const volatile ELEMENT*)source[s])[at]));
      out = narrow(total);
    }
    for (int t = 0; t < targets; ++t) ((volatile ELEMENT*)target[t])[at] = out;
  }
}

DEVICE void poison(char* const* target, int targets, i64 bytes) {
  for (int t = 0; t < targets; ++t)
    for (i64 at = threadIdx.x; at < bytes; at += movers()) ((volatile unsigned char*)target[t])[at] = 0xff;
}

DEVICE void move(char* const* source, int sources, char* const* target, int targets, i64 count) {
  if (sources == 0) return poison(target, targets, count * (i64)sizeof(ELEMENT));
  const u64 phase = (u64)source[0] % 16;
  bool alike = phase % sizeof(ELEMENT) == 0;
  for (int s = 1; s < sources; ++s) alike = alike && (u64)source[s] % 16 == phase;
  for (int t = 0; t < targets; ++t) alike = alike && (u64)target[t] % 16 == phase;
  if (!alike) return move_elements(source, sources, target, targets, 0, count);
  i64 head = phase ? (i64)((16 - phase) / sizeof(ELEMENT)) : 0;
  if (head > count) head = count;
  const i64 lines = (count - head) / PER_LINE;
  if (head) move_elements(source, sources, target, targets, 0, head);
  if (head + lines * PER_LINE < count) move_elements(source, sources, target, targets, head + lines * PER_LINE, count);
  char* from[MOST_SOURCES];
  SHARED char* to[MOST_TARGETS];
#pragma unroll
  for (int s = 0; s < MOST_SOURCES; ++s) from[s] = s < sources ? source[s] + head * (i64)sizeof(ELEMENT) : nullptr;
  for (int t = threadIdx.x; t < targets; t += movers()) to[t] = target[t] + head * (i64)sizeof(ELEMENT);
  sync_movers();
  switch (sources) {
    case 1: return move_lines<1, 8>(from, to, targets, lines);
    case 2: return move_lines<2, 4>(from, to, targets, lines);
    case 3: return move_lines<3, 4>(from, to, targets, lines);
    case 4: return move_lines<4, 4>(from, to, targets, lines);
    case 5: return move_lines<5, 2>(from, to, targets, lines);
    case 6: return move_lines<6, 2>(from, to, targets, lines);
    case 7: return move_lines<7, 2>(from, to, targets, lines);
    case 8: return move_lines<8, 2>(from, to, targets, lines);
  }
}

// Leaves behind, for the message, what this GPU was waiting for when it gave up; the first block to do so speaks.
DEVICE void report(u64* error, i64 op, i64 piece, u64 least, u64 seen) {
  if (atomicCAS(error, 0ULL, 1ULL) == 0) {
    error[1] = op, error[2] = piece, error[3] = blockIdx.x, error[4] = least, error[5] = seen;
  }
}

// How long a thread has been waiting. `over`, asked in vain again, is true once this GPU has given up.
struct Patience {
  u64 begin = 0;
  int turn = 0;
  DEVICE_METHOD bool over(u64 timeout, u64* error, i64 op, i64 piece, u64 least, u64 seen) {
    if (++turn % 64) return false;
    const u64 now = nanoseconds();
    if (!begin) begin = now;
    if (*(volatile u64*)error) return true;
    if (now - begin <= timeout) return false;
    report(error, op, piece, least, seen);
    return true;
  }
};

// Waits until *flag reaches `least`, which is over 0, and returns what it was then; 0 once this GPU has given up. `op` and
// `piece` say where, for the message.
DEVICE u64 wait_for(const u64* flag, u64 least, u64 timeout, u64* error, i64 op, i64 piece) {
  Patience patience;
  u64 seen;
  while ((seen = load_acquire(flag)) < least)
    if (patience.over(timeout, error, op, piece, least, seen)) return 0;
  return seen;
}

// What a flag was when it was last looked at: it may have been further already than it had to be.
struct Seen {
  const u64* flag;
  u64 value;
};
constexpr int MOST_SEEN = 8;

// Words of the table's head and of one op; tables.py writes them.
enum { QUEUES, SLICES, ORDER, UNIT, PIECE_UNITS, TOLD, AWAITED, STAGED, INBOX_BYTES, STRIDE, PACE, HEAD_WORDS };
enum { LENGTH, KEY, NUMBER, SOURCES_AT, TARGETS_AT, WAITS_AT, SIGNALS_AT, OP_WORDS };

// Flags to raise: their addresses and what to raise them to. None at all: nothing will follow.
struct Letter {
  const i64* flags;
  int count;
  u64 value;
};

// Before a flag may say to other GPUs that data are there, a fence waits until they have arrived, 3 us and more. One warp
// does that for its block, so that the others are at work on the next piece meanwhile (as in NCCL's protocol Simple), and
// for all pieces at once that were stored while it waited for the ones before.
constexpr int LETTERS = 16;
struct Mail {
  Letter letters[LETTERS];
  unsigned int written, sent;
  // By one thread, after a barrier of all that have stored.
  DEVICE_METHOD void post(const i64* flags, int count, u64 value) {
    const unsigned int number = written;
    while (number - read_shared(&sent) >= LETTERS) rest();
    letters[number % LETTERS] = {flags, count, value};
    write_shared(&written, number + 1);
  }
  // By the posters.
  DEVICE_METHOD void deliver(int slice) {
    for (unsigned int number = 0;;) {
      const unsigned int seen = of_first(read_shared(&written));
      if (number == seen) {
        rest();
        continue;
      }
      fence();
      for (; number != seen; ++number) {
        const Letter letter = letters[number % LETTERS];
        if (letter.count == 0) return;
        for (int i = threadIdx.x - movers(); i < letter.count; i += POSTERS)
          store_fenced((u64*)letter.flags[i] + slice, letter.value);
      }
      together();
      if (threadIdx.x == movers()) write_shared(&sent, number);
    }
  }
};

DEVICE Mail& mail() {
  SHARED_WITH_POSTERS(Mail, of_this_block);
  return of_this_block;
}

// A queue up to this size is copied into shared memory: reading it piece by piece would cost a round trip each time.
constexpr int CACHE_WORDS = 2048;

// Addresses in an inbox have this bit set.
constexpr i64 IN_INBOX = 1LL << 62;

// queue: the ops of one queue and, behind them, the addresses that they name by position. inbox: from an address in an
// inbox to the half of it that this launch uses. pace: the least cycles for a KiB, or 0. seen: by the thread
// that waits for the flag in that place.
struct Run {
  const i64* queue;
  int ops, slice, slices, unit, piece_units, pace;
  i64 inbox;
  u64 base, timeout;
  u64* error;
  Seen* seen;
  DEVICE_METHOD const i64* op(int number) const { return queue + 1 + OP_WORDS * number; }
  DEVICE_METHOD char* place(i64 address, i64 element) const {
    return (char*)(address & IN_INBOX ? address + inbox : address) + element * (i64)sizeof(ELEMENT);
  }
};

// The units of a chunk that a slice works on; a chunk has fewer than 2^31.
struct Part { int first, last; };

// In calls, divisions of small numbers take their short way. Programs keep the long one, with which the constants of the
// model `execution` were measured.
DEVICE i64 divided(i64 a, i64 b) {
#ifdef BLINKSIM_CALLS
  if (((u64)a | (u64)b) >> 32 == 0) return (unsigned)a / (unsigned)b;
#endif
  return a / b;
}
DEVICE Part part_of(const Run& run, const i64* op) {
  const i64 units = divided(op[LENGTH] + run.unit - 1, run.unit);
  return {(int)divided(units * run.slice, run.slices), (int)divided(units * (run.slice + 1), run.slices)};
}
DEVICE int pieces_of(const Run& run, Part part) {
  return (part.last - part.first + run.piece_units - 1) / run.piece_units;
}
DEVICE bool stores(const i64* op) { return op[OP_WORDS + TARGETS_AT] > op[TARGETS_AT]; }

// What a block does next: an op by its place in the queue. ready: its flags have been seen already.
struct Turn { int op, piece; Part part; bool ready; };

// The turns of a queue in a fixed order. By key: all pieces of an op, then the next op. In waves: piece `wave - key` of
// every op, then the next wave. Nothing follows the ops that only wait, so they come last, with their last piece.
struct Walk {
  int at, wave;
  bool waves, more, waiting;
#ifdef BLINKSIM_CALLS
  // Calls jump over waves without a turn: how far the next one is, as far as this pass has seen.
  int ahead = 1 << 30;
#endif
  DEVICE_METHOD bool next(const Run& run, Turn& turn) {
    for (;; ++at) {
      if (at == run.ops) {
        if (waiting) return false;
        waiting = !(waves && more), at = 0, more = false, ++wave, turn.op = -1;
        if (run.ops == 0) return false;
#ifdef BLINKSIM_CALLS
        if (waves && !waiting && ahead < 1 << 30) wave += ahead - 1;
        ahead = 1 << 30;
#endif
      }
      const i64* op = run.op(at);
      if (stores(op) == waiting) continue;
      const bool same = turn.op == at;
      if (!same) turn.part = part_of(run, op);
      const int pieces = pieces_of(run, turn.part);
      const int piece = waiting ? pieces - 1 : waves ? wave - (int)op[KEY] : same ? turn.piece + 1 : 0;
      more |= piece + 1 < pieces;
      turn.op = at, turn.piece = piece;
#ifdef BLINKSIM_CALLS
      if (piece + 1 < pieces) ahead = piece < 0 ? (-piece < ahead ? -piece : ahead) : 1;
#endif
      if (piece < 0 || piece >= pieces) continue;
      if (waiting || waves) ++at;
      return true;
    }
  }
};

#if PACKETS
// --- packets: four lines, which hold 480 bytes of data and each the number of their launch -----------------------------

// Bytes of data in a packet, and of a cell; cells of a packet.
constexpr int DATA = 480, CELL = 16, CELLS = 32;

// Where a cell's data are in the vector. A packet begins with the cells that are not the last of their line, so
// that they lie on multiples of 16 bytes in vectors as well; the halves of the last ones follow.
DEVICE int place_of(int cell) {
  const int in = cell % CELLS, line = in / 8, slot = in % 8;
  return cell / CELLS * DATA + (slot < 7 ? CELL * (7 * line + slot) : 7 * 4 * CELL + 8 * line);
}

union Word { u64 bits; ELEMENT e[8 / sizeof(ELEMENT)]; };

// The first `bytes` of eight bytes of a vector; what is behind them does not matter.
DEVICE u64 load_word(const char* p, int bytes) {
  if (bytes >= 8 && (u64)p % 8 == 0) return *(const volatile u64*)p;
  Word word;
  word.bits = 0;
  for (int e = 0; e < (int)(8 / sizeof(ELEMENT)); ++e)
    if (e * (int)sizeof(ELEMENT) < bytes) word.e[e] = ((const volatile ELEMENT*)p)[e];
  return word.bits;
}
DEVICE void store_word(char* p, u64 v, int bytes) {
  if (bytes >= 8 && (u64)p % 8 == 0) {
    *(volatile u64*)p = v;
    return;
  }
  Word word;
  word.bits = v;
  for (int e = 0; e < (int)(8 / sizeof(ELEMENT)); ++e)
    if (e * (int)sizeof(ELEMENT) < bytes) ((volatile ELEMENT*)p)[e] = word.e[e];
}
// The data of a cell, of which `bytes` belong to the vector.
DEVICE Cell load_data(const char* p, int slot, int bytes) {
  Cell v;
  if (slot < 7 && bytes >= CELL && (u64)p % CELL == 0) {
    const Line line = load_line(p);
    v.w[0] = line.w[1], v.w[0] = v.w[0] << 32 | line.w[0];
    v.w[1] = line.w[3], v.w[1] = v.w[1] << 32 | line.w[2];
  } else {
    v.w[0] = load_word(p, bytes), v.w[1] = slot < 7 ? load_word(p + 8, bytes - 8) : 0;
  }
  return v;
}
DEVICE void store_data(char* p, int slot, int bytes, Cell v) {
  if (slot < 7 && bytes >= CELL && (u64)p % CELL == 0) {
    store_line(p, {(unsigned)v.w[0], (unsigned)(v.w[0] >> 32), (unsigned)v.w[1], (unsigned)(v.w[1] >> 32)});
  } else {
    store_word(p, v.w[0], bytes);
    if (slot < 7) store_word(p + 8, v.w[1], bytes - 8);
  }
}
// The words of N sources, reduced from first to last and rounded once.
template <int N>
DEVICE u64 reduce_words(const u64 (&bits)[N]) {
  Word word[N];
#pragma unroll
  for (int s = 0; s < N; ++s) word[s].bits = bits[s];
#pragma unroll
  for (int e = 0; e < (int)(8 / sizeof(ELEMENT)); ++e) {
    WIDE total = widen(word[0].e[e]);
#pragma unroll
    for (int s = 1; s < N; ++s) total = combine(total, widen(word[s].e[e]));
    word[0].e[e] = narrow(total);
  }
  return word[0].bits;
}

// Reduces a piece of N sources and stores it to every target, U cells of each source in flight per thread. Every warp goes
// on as soon as its own lines are there. False if it must leave. none: poison.
template <int N, int U>
DEVICE bool move_packets(const Run& run, const i64* op, int piece, i64 begin, i64 end, bool none) {
  const i64 *source = run.queue + op[SOURCES_AT], *target = run.queue + op[TARGETS_AT];
  const int targets = (int)(op[OP_WORDS + TARGETS_AT] - op[TARGETS_AT]), stride = movers();
  const u64 launch = run.base;
  const i64 data = begin * (i64)sizeof(ELEMENT), inbox = begin / run.unit * (CELLS * CELL) + run.inbox;
  const int size = (int)((end - begin) * (i64)sizeof(ELEMENT)), cells = (size + DATA - 1) / DATA * CELLS;
  for (int at = threadIdx.x; at - (int)threadIdx.x % WARP < cells; at += U * stride) {
    Cell v[N][U];
    bool here[N][U];
#pragma unroll
    for (int s = 0; s < N; ++s)
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int cell = at + u * stride, slot = cell % 8, byte = place_of(cell);
        here[s][u] = true;
        v[s][u].w[0] = v[s][u].w[1] = ~0ULL;
        if (none) continue;
        if (source[s] & IN_INBOX) {
          together();
          if (cell < cells) here[s][u] = load_cell((char*)(source[s] + inbox) + CELL * (cell - slot), slot, launch, v[s][u]);
        } else if (cell < cells) {
          v[s][u] = load_data((char*)source[s] + data + byte, slot, size - byte);
        }
      }
#pragma unroll
    for (int s = 0; s < N; ++s)
#pragma unroll
      for (int u = 0; u < U; ++u) {
        if (none || !(source[s] & IN_INBOX)) continue;
        const int cell = at + u * stride, slot = cell % 8;
        const char* line = (char*)(source[s] + inbox) + CELL * (cell - slot);
        Patience patience;
        while (!all_of(here[s][u])) {
          // Only who can see the number asks, so that the message shows it.
          const bool over =
              !here[s][u] && patience.over(run.timeout, run.error, op[NUMBER], piece, launch, v[s][u].w[1]);
          if (!all_of(!over)) return false;
          if (cell < cells) here[s][u] = load_cell(line, slot, launch, v[s][u]);
        }
        // Once more, as NCCL does it: should a line have been seen while it arrived, it has arrived now.
        if (cell < cells) load_cell(line, slot, launch, v[s][u]);
      }
    if (N > 1)
#pragma unroll
      for (int u = 0; u < U; ++u)
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          u64 bits[N];
#pragma unroll
          for (int s = 0; s < N; ++s) bits[s] = v[s][u].w[w];
          v[0][u].w[w] = reduce_words<N>(bits);
        }
    for (int t = 0; t < targets; ++t)
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int cell = at + u * stride, slot = cell % 8, byte = place_of(cell);
        if (target[t] & IN_INBOX) {
          Cell out = v[0][u];
          if (slot == 7) out.w[1] = launch;
          together();
          if (cell < cells) store_cell((char*)(target[t] + inbox) + CELL * (cell - slot), slot, out);
        } else if (cell < cells) {
          store_data((char*)target[t] + data + byte, slot, size - byte, v[0][u]);
        }
      }
  }
  return true;
}

DEVICE bool move_packets(const Run& run, const i64* op, int sources, int piece, i64 begin, i64 end) {
  switch (sources) {
    case 0: return move_packets<1, 1>(run, op, piece, begin, end, true);
    case 1: return move_packets<1, 2>(run, op, piece, begin, end, false);
    case 2: return move_packets<2, 2>(run, op, piece, begin, end, false);
    case 3: return move_packets<3, 2>(run, op, piece, begin, end, false);
    case 4: return move_packets<4, 2>(run, op, piece, begin, end, false);
    case 5: return move_packets<5, 1>(run, op, piece, begin, end, false);
    case 6: return move_packets<6, 1>(run, op, piece, begin, end, false);
    case 7: return move_packets<7, 1>(run, op, piece, begin, end, false);
    default: return move_packets<8, 1>(run, op, piece, begin, end, false);
  }
}
#endif

// One piece of one op, by the whole block. False if the block must leave. Called in one place only: inlined there, it
// keeps its state in registers.
DEVICE bool run_piece(const Run& run, const Turn& turn) {
  const i64 *queue = run.queue, *op = run.op(turn.op), *next = op + OP_WORDS;
  const int sources = (int)(next[SOURCES_AT] - op[SOURCES_AT]), targets = (int)(next[TARGETS_AT] - op[TARGETS_AT]);
  const int waits = (int)(next[WAITS_AT] - op[WAITS_AT]), signals = (int)(next[SIGNALS_AT] - op[SIGNALS_AT]);
  const int piece = turn.piece, low = turn.part.first + piece * run.piece_units;
  const int high = turn.part.last - low < run.piece_units ? turn.part.last : low + run.piece_units;
  const i64 begin = (i64)low * run.unit, end = (i64)high * run.unit < op[LENGTH] ? (i64)high * run.unit : op[LENGTH];
  const u64 count = run.base + (u64)piece + 1;
  int fine = 1;
  for (int i = turn.ready ? waits : threadIdx.x; i < waits; i += movers()) {
    const u64* const flag = (const u64*)queue[op[WAITS_AT] + i] + run.slice;
    Seen* const before = i < MOST_SEEN ? run.seen + i : nullptr;
    if (before && before->flag == flag && before->value >= count) continue;
    const u64 value = wait_for(flag, count, run.timeout, run.error, op[NUMBER], piece);
    if (before) *before = {flag, value};
    fine &= value > 0;
  }
#if PACKETS
  if (targets) {
    // Nobody else of the block need be waited for, unless flags are in play after all.
    if (waits && !sync_and(fine)) return false;
    fine = move_packets(run, op, sources, piece, begin, end);
    if (signals ? !sync_and(fine) : !fine) return false;
  } else if (!sync_and(fine)) {
    return false;
  }
  for (int i = threadIdx.x; i < signals; i += movers())
    store_release((u64*)queue[op[SIGNALS_AT] + i] + run.slice, count);
#else
  SHARED char* source[MOST_SOURCES];
  SHARED char* target[MOST_TARGETS];
  for (int i = threadIdx.x; i < sources; i += movers()) source[i] = run.place(queue[op[SOURCES_AT] + i], begin);
  for (int i = threadIdx.x; i < targets; i += movers()) target[i] = run.place(queue[op[TARGETS_AT] + i], begin);
  if (!sync_and(fine)) return false;
  const u64 start = run.pace ? cycles() : 0;
  if (targets) move(source, sources, target, targets, end - begin);
  sync_movers();
  if (run.pace)
    for (const u64 least = (u64)((end - begin) * (i64)sizeof(ELEMENT) * run.pace / 1024); cycles() - start < least;) {}
  if (signals && threadIdx.x == 0) mail().post(queue + op[SIGNALS_AT], signals, count);
#endif
  return true;
}

// A queue up to this many ops can take whichever is ready; fit.py checks it.
constexpr int MOST_READY = 512;

// The first wait of an op that does not hold yet for one piece, or null.
DEVICE const u64* missing(const Run& run, const i64* op, u64 count) {
  for (i64 i = op[WAITS_AT]; i < op[OP_WORDS + WAITS_AT]; ++i) {
    const u64* flag = (const u64*)run.queue[i] + run.slice;
    if (load_acquire(flag) < count) return flag;
  }
  return nullptr;
}

// The turns of a queue whose ops are taken as they get ready, always the one with the smallest share of its pieces done:
// no block waits for what is late while there is something else to do, and ops of different length finish together.
struct Choice {
  int *done, *count;  // pieces of each op, in shared memory
  u64 *best, *idle_since;
  DEVICE_METHOD void begin(const Run& run) {
    for (int i = threadIdx.x; i < run.ops; i += movers())
      done[i] = 0, count[i] = pieces_of(run, part_of(run, run.op(i)));
    if (threadIdx.x == 0) *idle_since = 0;
  }
  // 1 with a turn, 0 if none is left, -1 if the block must leave.
  DEVICE_METHOD int next(const Run& run, Turn& turn) {
    for (;;) {
      if (threadIdx.x == 0) *best = ~0ULL;
      sync_movers();
      int left = 0;
      for (int i = threadIdx.x; i < run.ops; i += movers()) {
        if (done[i] >= count[i]) continue;
        left = 1;
        if (!missing(run, run.op(i), run.base + (u64)done[i] + 1))
          atomicMin(best, ((u64)done[i] << 20) / (u64)count[i] << 10 | (u64)i);
      }
      if (!sync_or(left)) return 0;
      const u64 chosen = *best;
      if (chosen != ~0ULL) {
        const int i = (int)(chosen & 1023);
        turn = {i, done[i], part_of(run, run.op(i)), true};
        sync_movers();
        if (threadIdx.x == 0) ++done[i], *idle_since = 0;
        return 1;
      }
      int fine = 1;
      if (threadIdx.x == 0) {
        const u64 now = nanoseconds();
        if (!*idle_since) *idle_since = now;
        if (*(volatile u64*)run.error) fine = 0;
        else if (now - *idle_since > run.timeout) {
          int i = 0;
          while (done[i] >= count[i]) ++i;  // ops stand by key: the first is what the others wait for
          const i64* op = run.op(i);
          const u64 wanted = run.base + (u64)done[i] + 1;
          const u64* flag = missing(run, op, wanted);
          report(run.error, op[NUMBER], done[i], wanted, flag ? load_acquire(flag) : wanted);
          fine = 0;
        }
      }
      if (!sync_and(fine)) return -1;
    }
  }
};

#ifndef BLINKSIM_CALLS
// Moves `count` elements once, every block a part of its own: sources and targets are addresses in any GPU's memory.
KERNEL run_stream(const i64* addresses, i64 sources, i64 targets, i64 count) {
  SHARED char* source[MOST_SOURCES];
  SHARED char* target[MOST_TARGETS];
  const i64 units = (count + PER_LINE - 1) / PER_LINE;
  const i64 begin = units * blockIdx.x / gridDim.x * PER_LINE;
  i64 end = units * (blockIdx.x + 1) / gridDim.x * PER_LINE;
  if (end > count) end = count;
  if ((int)threadIdx.x >= movers()) return;
  for (int i = threadIdx.x; i < sources; i += movers()) source[i] = (char*)addresses[i] + begin * (i64)sizeof(ELEMENT);
  for (int i = threadIdx.x; i < targets; i += movers())
    target[i] = (char*)addresses[sources + i] + begin * (i64)sizeof(ELEMENT);
  sync_movers();
  if (begin < end) move(source, (int)sources, target, (int)targets, end - begin);
}
#endif

#ifndef BLINKSIM_CALLS
// What a block's movers do; queue number and slice say which block it is.
DEVICE void conduct(const i64* table, i64 queues, i64 stride, u64 epoch, u64 timeout, u64* error, int number, int slice) {
  const i64 *herald = table + HEAD_WORDS + stride * queues, told = table[TOLD], awaited = table[AWAITED];
  const int order = (int)table[ORDER];
  const u64 begun = epoch - table[STAGED];
  // Scratch and outputs of the previous launch may be overwritten once their owner has begun this one: every GPU
  // announces itself to those that store to it, and waits for those that it stores to. Inboxes have two halves, used in
  // turn: if nothing else is stored to, it is enough that the others have begun the previous launch, and so are done with
  // the one before.
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < told; i += movers()) store_release((u64*)herald[i], epoch);
  // While the others answer: this block's queue. A GPU without ops may still be stored to, and only announces itself.
  SHARED i64 cache[CACHE_WORDS];
  const i64* const words = table + HEAD_WORDS + stride * number;
  const bool cached = stride <= CACHE_WORDS;
  if (cached && queues)
    for (i64 i = threadIdx.x; i < stride; i += movers()) cache[i] = words[i];
  // In shared memory: what moves data needs the registers.
  SHARED Run run;
  SHARED Seen seen[MOST_SEEN];
  if (threadIdx.x < MOST_SEEN) seen[threadIdx.x].flag = nullptr;
  if (threadIdx.x == 0 && queues) {
    // The first word is the number of ops, and above it whether the queue is a wire, which may be slowed down.
    const i64 first = words[0], inbox = (i64)(epoch % 2) * table[INBOX_BYTES] - IN_INBOX;
    run = {cached ? cache : words, (int)first, slice, (int)table[SLICES], (int)table[UNIT], (int)table[PIECE_UNITS],
           first >> 32 ? (int)table[PACE] : 0, inbox, epoch << 32, timeout, error, seen};
  }
  int fine = 1;
  for (int i = threadIdx.x; i < awaited; i += movers())
    fine &= begun == 0 || wait_for((const u64*)herald[told + i], begun, timeout, error, -1, 0) > 0;
  if (!sync_and(fine) || queues == 0) return;
  SHARED int done[MOST_READY], count[MOST_READY];
  SHARED u64 best, idle_since;
  Choice choice = {done, count, &best, &idle_since};
  Walk walk = {0, 0, order == 1, false, false};
  Turn turn = {-1, 0, {0, 0}, false};
  if (order == 2) choice.begin(run);
  for (;;) {
    if (order == 2 ? choice.next(run, turn) < 1 : !walk.next(run, turn)) return;
    if (!run_piece(run, turn)) return;
  }
}

// queues, stride: as in the table, so that the queue can be fetched together with the head. epoch: 1 for the first launch
// over these tables, one more for each further one. timeout: nanoseconds.
KERNEL run_program(const i64* table, i64 queues, i64 stride, u64 epoch, u64 timeout, u64* error) {
  const int number = queues ? blockIdx.x % (int)queues : 0, slice = queues ? blockIdx.x / (int)queues : 0;
#if PACKETS
  conduct(table, queues, stride, epoch, timeout, error, number, slice);
#else
  if (threadIdx.x == 0) mail().written = mail().sent = 0;
  sync_all();
  if ((int)threadIdx.x >= movers()) return mail().deliver(slice);
  conduct(table, queues, stride, epoch, timeout, error, number, slice);
  if (threadIdx.x == 0) mail().post(nullptr, 0, 0);
#endif
}
#endif
