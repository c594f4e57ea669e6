// A call of a group of processes, one GPU each: appended to kernels.cu, whose ops it runs. jobs/tables.py writes what is
// behind the queues of a table, and says which bits mark addresses that only the launch knows.
//
// Every rank announces each launch to every other, with its number and what is called, and begins no launch before all
// have begun the one before: so inboxes and flags of two halves suffice, whatever the programs are. Launches are counted
// on the GPU, so that a captured graph counts as well.
//
// A launch may run its program several times, each time further on in the caller's vectors: so a long message goes through
// a small inbox, and the links never run dry between two launches. Rounds are counted as well, over all launches, and use
// the halves in turn. Blocks of different slices never meet; so every block announces each round to all ranks, and begins
// none before the blocks of its slice have begun the one before, everywhere.

constexpr i64 IN_INPUT = 1LL << 61, IN_OUTPUT = 1LL << 60, IN_FLAGS = 1LL << 59;
enum { FLAGS_HALF, SENDERS, ALARM_AT, PARTS, PART_BYTES, PART_STRIDE, ROUNDS, STEP, GATES, NOTES_AT };
enum { LAUNCHES, EXITS, BEFORE, ROUNDS_DONE };  // of the state, in this GPU's memory
enum { FIRST_HERALD = 8 };              // of the notes: first what went wrong, then two words for every rank
enum { GAVE_UP = 1, MISMATCH, TOLD_SO };  // the first word of the notes

DEVICE const u64* herald_of(const u64* notes, i64 rank, u64 epoch) { return notes + FIRST_HERALD + 2 * rank + epoch % 2; }

DEVICE void report_mismatch(u64* notes, i64 peer, u64 seen, u64 wanted) {
  if (atomicCAS(notes, 0ULL, (u64)MISMATCH) == 0) notes[1] = peer, notes[2] = seen, notes[3] = wanted;
}

// Waits until a rank has begun a launch; false if it called something else there, or if this GPU has given up. A rank that
// has begun a later launch has compared the two calls itself.
DEVICE int has_begun(u64* notes, i64 peer, u64 epoch, unsigned int signature, u64 timeout) {
  const u64 seen = wait_for(herald_of(notes, peer, epoch), epoch << 32, timeout, notes, -1, peer);
  if (seen == 0) return 0;
  if (seen >> 32 != epoch || (unsigned int)seen == signature) return 1;
  report_mismatch(notes, peer, seen, epoch << 32 | signature);
  return 0;
}

// The output of a call that failed must not pass for data.
DEVICE void spoil(char* output, const i64* tail) {
  for (i64 part = 0; part < tail[PARTS]; ++part)
    for (i64 at = 0; at < tail[PART_BYTES]; ++at) ((volatile unsigned char*)output)[part * tail[PART_STRIDE] + at] = 0xff;
}

// What a launch is given, beside its table: which rank this is and of how many, its launch counter and its notes, where the
// caller's vectors are, what is called, and the nanoseconds that it may wait.
struct Given {
  int rank, ranks;
  u64 *state, *notes;
  char *input, *output;
  unsigned int signature;
  u64 timeout;
};

// Of all launches and of all rounds, up to the end of this launch.
struct Counts { u64 launches, rounds; };

// By one thread of every block, as the last thing it does. The notes are asked for before the others have answered, which
// saves a trip to memory: a block that has failed counts as such, and what another GPU writes there later, the next launch
// finds.
DEVICE void leave(const Given& given, const i64* tail, Counts counts, bool fine) {
  if (!fine) fence();
  const u64 noted = *(volatile u64*)given.notes, mine = fine ? 1 : 1 | 1ULL << 32;
  const u64 left = atomicAdd(given.state + EXITS, mine) + mine;
  if ((unsigned int)left != (unsigned int)gridDim.x) return;
  given.state[EXITS] = 0, given.state[LAUNCHES] = counts.launches, given.state[BEFORE] = given.signature;
  given.state[ROUNDS_DONE] = counts.rounds;
  if (!noted && !(left >> 32)) return;
  spoil(given.output, tail);
  store_release((u64*)tail[ALARM_AT], 1);
  for (int rank = 0; rank < given.ranks; ++rank) {
    u64* const other = (u64*)tail[NOTES_AT + rank];
    if (rank == given.rank || load_acquire(other)) continue;
    other[1] = given.rank;
    store_release(other, TOLD_SO);
  }
}

#if !PACKETS
// The rounds of a launch behind the first one. gates, own: addresses for slice 0 of the words in which the blocks of all
// queues of all ranks announce themselves here, and in which this block does there. first: the number of the first round.
// stale: letters up to here name flags in the half of the cache that the next round overwrites.
constexpr int HALF_CACHE = CACHE_WORDS / 2;
struct Rounds {
  const i64 *gates, *own, *words;
  i64* cache;
  int awaited, ranks, slice, stride;
  u64 first;
  i64 flags_half, inbox_half;
  unsigned int stale;
  DEVICE_METHOD void announce(u64 round) const {
    if (threadIdx.x == 0) mail().post(own, ranks, round);
  }
  // False if the block must leave: some block did not begin the round in time.
  DEVICE_METHOD bool all_have_begun(u64 round, const Given& given) const {
    int fine = 1;
    for (int i = threadIdx.x; i < awaited; i += movers())
      fine &= wait_for((const u64*)gates[i] + slice, round, given.timeout, given.notes, -1, -1) > 0;
    return sync_and(fine);
  }
  // Sets a block up for its next round, `number` from 1.
  DEVICE_METHOD bool begin(int number, i64 step, Run& run, const Given& given) {
    if (threadIdx.x == 0) {
      while ((int)(read_shared(&mail().sent) - stale) < 0) rest();
      stale = mail().written;
    }
    sync_movers();
    const u64 round = first + number;
    i64* const half = cache + number % 2 * HALF_CACHE;
    const i64 flags = (i64)(round % 2) * flags_half - IN_FLAGS, on = number * step;
    for (int i = threadIdx.x; i < stride; i += movers()) {
      const i64 word = words[i];
      half[i] = word + (word & IN_INPUT ? (i64)given.input + on - IN_INPUT
                        : word & IN_OUTPUT ? (i64)given.output + on - IN_OUTPUT : word & IN_FLAGS ? flags : 0);
    }
    if (threadIdx.x == 0)
      run.queue = half, run.inbox = (i64)(round % 2) * inbox_half - IN_INBOX, run.base = round << 32;
    announce(round);
    return all_have_begun(round - 1, given);
  }
};
#endif

// What the movers of a block do; false if they give up. Whatever a launch has to look up is asked for at once.
DEVICE bool conduct_call(const Given& given, const i64* table, const i64* tail, i64 queues, i64 stride, Counts& counts,
                         int number, int slice) {
  SHARED i64 cache[CACHE_WORDS];
  SHARED Run run;
  SHARED Seen seen[MOST_SEEN];
  const i64* const words = table + HEAD_WORDS + stride * number;
  const u64 done = ((volatile u64*)given.state)[LAUNCHES], first_round = ((volatile u64*)given.state)[ROUNDS_DONE] + 1;
  const unsigned int before = (unsigned int)((volatile u64*)given.state)[BEFORE];
  const bool failed = *(volatile u64*)given.notes != 0;
  const i64 half = tail[FLAGS_HALF], inbox_half = table[INBOX_BYTES];
  const int slices = (int)table[SLICES], unit = (int)table[UNIT], piece_units = (int)table[PIECE_UNITS];
  const int pace = (int)table[PACE], order = (int)table[ORDER], other = threadIdx.x;
  i64 word = queues && threadIdx.x < stride ? words[threadIdx.x] : 0;
  const i64 first = queues ? words[0] : 0;
  u64* const others = other < given.ranks ? (u64*)tail[NOTES_AT + other] : nullptr;
  const u64 even = other < given.ranks ? *(volatile u64*)herald_of(given.notes, other, 0) : 0;
  const u64 odd = other < given.ranks ? *(volatile u64*)herald_of(given.notes, other, 1) : 0;
  const u64 epoch = done + 1;
  const int rounds = PACKETS ? 1 : (int)tail[ROUNDS];
  counts = {epoch, first_round + rounds - 1};
  // After an error, nothing is begun any more, and the notes stay as they are. What is announced orders no data: only that
  // the launches before have ended.
  int fine = !failed;
  if (blockIdx.x == 0 && fine)
    for (int to = other; to < given.ranks; to += movers())
      store_fenced((u64*)herald_of(to == other ? others : (u64*)tail[NOTES_AT + to], given.rank, epoch),
                   epoch << 32 | given.signature);
  const i64 flags = (i64)(first_round % 2) * half - IN_FLAGS;
  for (i64 i = threadIdx.x; queues && i < stride; i += movers()) {
    if (i >= movers()) word = words[i];
    cache[i] = word + (word & IN_INPUT ? (i64)given.input - IN_INPUT : word & IN_OUTPUT ? (i64)given.output - IN_OUTPUT
                       : word & IN_FLAGS ? flags : 0);
  }
  if (threadIdx.x < MOST_SEEN) seen[threadIdx.x].flag = nullptr;
  if (threadIdx.x == 0) {
    const i64 inbox = (i64)(first_round % 2) * inbox_half - IN_INBOX;
    run = {cache, (int)first, slice, slices, unit, piece_units, first >> 32 ? pace : 0, inbox, first_round << 32,
           given.timeout, given.notes, seen};
  }
  if (fine && epoch > 1)
    for (int from = other; from < given.ranks; from += movers()) {
      const bool heard = from == other && (epoch % 2 ? even : odd) == ((epoch - 1) << 32 | before);
      if (from != given.rank && !heard) fine &= has_begun(given.notes, from, epoch - 1, before, given.timeout);
    }
  if (!sync_and(fine)) return false;
  SHARED int done_pieces[MOST_READY], count[MOST_READY];
  SHARED u64 best, idle_since;
  Choice choice = {done_pieces, count, &best, &idle_since};
#if !PACKETS
  const i64* const gates = tail + NOTES_AT + given.ranks;
  const bool again = queues && rounds > 1;
  Rounds further = {gates, gates + tail[GATES] + number * given.ranks, words, cache, (int)tail[GATES], given.ranks, slice,
                    (int)stride, first_round, half, inbox_half, 0};
  if (again) further.announce(first_round);
  for (int round = 1;; ++round) {
#endif
    Walk walk = {0, 0, order == 1, false, false};
    Turn turn = {-1, 0, {0, 0}, false};
    if (queues && order == 2) choice.begin(run);
    while (queues && (order == 2 ? choice.next(run, turn) == 1 : walk.next(run, turn)))
      if (!run_piece(run, turn)) return false;
#if !PACKETS
    if (!again || round == rounds) break;
    if (!further.begin(round, tail[STEP], run, given)) return false;
  }
  // The next launch begins in the half of the last round but one, which all others have left when they begin the last one.
  if (again && !further.all_have_begun(counts.rounds, given)) return false;
#endif
  // Those that sent data have announced the launch: were they in the same call? The last threads look, which are the first
  // to be done with a short message.
  if (blockIdx.x == 0) {
    const u64 senders = (u64)tail[SENDERS];
    for (int from = movers() - 1 - (int)threadIdx.x; from < given.ranks; from += movers())
      if (senders >> from & 1) fine &= has_begun(given.notes, from, epoch, given.signature, given.timeout);
    if (!PACKETS) fine = sync_and(fine);
  }
  return fine;
}

// queues, stride: as in the table; the others: see Given.
KERNEL run_call(const i64* table, i64 queues, i64 stride, i64 rank, i64 ranks, u64* state, u64* notes, char* input,
                char* output, u64 signature, u64 timeout) {
  const int number = queues ? blockIdx.x % (int)queues : 0, slice = queues ? blockIdx.x / (int)queues : 0;
  const i64* const tail = table + HEAD_WORDS + stride * queues;
  const Given given = {(int)rank, (int)ranks, state, notes, input, output, (unsigned int)signature, timeout};
  Counts counts = {};
#if PACKETS
  // Warps leave one by one when they give up: the last one of the block counts.
  SHARED unsigned int warps;
  if (threadIdx.x == 0) warps = 0;
  sync_all();
  bool fine = conduct_call(given, table, tail, queues, stride, counts, number, slice);
  fine = all_of(fine);
  if (threadIdx.x % WARP == 0) {
    if (!fine) fence();
    const unsigned int mine = fine ? 1 : 1 | 1u << 16, left = atomicAdd(&warps, mine) + mine;
    if ((left & 0xffff) == (unsigned)(movers() / WARP)) leave(given, tail, counts, left >> 16 == 0);
  }
#else
  if (threadIdx.x == 0) mail().written = mail().sent = 0;
  sync_all();
  if ((int)threadIdx.x >= movers()) return mail().deliver(slice);
  const bool fine = conduct_call(given, table, tail, queues, stride, counts, number, slice);
  if (threadIdx.x == 0) {
    mail().post(nullptr, 0, 0);
    leave(given, tail, counts, fine);
  }
#endif
}
