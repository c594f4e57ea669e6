// A call of a group of processes, one GPU each: appended to kernels.cu, whose ops it runs. jobs/tables.py writes what is
// behind the queues of a table, and says which bits mark addresses that only the launch knows.
//
// Every rank announces each launch to every other, with its number and what is called, and begins no launch before all
// have begun the one before: so inboxes and flags of two halves suffice, whatever the programs are. Launches are counted
// on the GPU, so that a captured graph counts as well.

#define BLINKSIM_CALLS
constexpr i64 IN_INPUT = 1LL << 61, IN_OUTPUT = 1LL << 60, IN_FLAGS = 1LL << 59;
enum { CALL_RANK, CALL_RANKS, FLAGS_HALF, SENDERS, STATE_AT, ALARM_AT, PARTS, PART_BYTES, PART_STRIDE, NOTES_AT };
enum { EPOCH, EXITS, BEFORE };          // of the state, in this GPU's memory
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

// By one thread of every block, as the last thing it does.
DEVICE void leave(const i64* tail, char* output, u64 epoch, unsigned int signature, int blocks) {
  u64* const state = (u64*)tail[STATE_AT];
  u64* const notes = (u64*)tail[NOTES_AT + tail[CALL_RANK]];
  if (*(volatile u64*)notes) fence();
  if (atomicAdd(state + EXITS, 1ULL) + 1 != (u64)blocks) return;
  state[EXITS] = 0, state[EPOCH] = epoch, state[BEFORE] = signature;
  if (!*(volatile u64*)notes) return;
  spoil(output, tail);
  store_release((u64*)tail[ALARM_AT], 1);
  for (i64 rank = 0; rank < tail[CALL_RANKS]; ++rank) {
    u64* const other = (u64*)tail[NOTES_AT + rank];
    if (rank == tail[CALL_RANK] || load_acquire(other)) continue;
    other[1] = tail[CALL_RANK];
    store_release(other, TOLD_SO);
  }
}

DEVICE void all_called(const i64* tail, u64 epoch, unsigned int signature, u64 timeout) {
  for (int rank = threadIdx.x; rank < (int)tail[CALL_RANKS]; rank += movers())
    if ((u64)tail[SENDERS] >> rank & 1)
      has_begun((u64*)tail[NOTES_AT + tail[CALL_RANK]], rank, epoch, signature, timeout);
}

// What the movers of a block do.
DEVICE void conduct_call(const i64* table, const i64* tail, i64 queues, i64 stride, char* input, char* output, u64 epoch,
                         unsigned int signature, u64 timeout, int number, int slice) {
  const i64 rank = tail[CALL_RANK], ranks = tail[CALL_RANKS];
  u64* const notes = (u64*)tail[NOTES_AT + rank];
  // After an error, nothing is begun any more, and the notes stay as they are.
  int fine = *(volatile u64*)notes == 0;
  if (blockIdx.x == 0 && fine)
    for (int other = threadIdx.x; other < (int)ranks; other += movers())
      store_release((u64*)herald_of((u64*)tail[NOTES_AT + other], rank, epoch), epoch << 32 | signature);
  SHARED i64 cache[CACHE_WORDS];
  const i64* const words = table + HEAD_WORDS + stride * number;
  const i64 flags = (i64)(epoch % 2) * tail[FLAGS_HALF] - IN_FLAGS;
  if (queues)
    for (i64 i = threadIdx.x; i < stride; i += movers()) {
      const i64 word = words[i];
      cache[i] = word + (word & IN_INPUT ? (i64)input - IN_INPUT : word & IN_OUTPUT ? (i64)output - IN_OUTPUT
                         : word & IN_FLAGS ? flags : 0);
    }
  SHARED Run run;
  SHARED Seen seen[MOST_SEEN];
  if (threadIdx.x < MOST_SEEN) seen[threadIdx.x].flag = nullptr;
  if (threadIdx.x == 0 && queues) {
    const i64 first = words[0], inbox = (i64)(epoch % 2) * table[INBOX_BYTES] - IN_INBOX;
    run = {cache, (int)first, slice, (int)table[SLICES], (int)table[UNIT], (int)table[PIECE_UNITS],
           first >> 32 ? (int)table[PACE] : 0, inbox, epoch << 32, timeout, notes, seen};
  }
  const unsigned int before = (unsigned int)((const u64*)tail[STATE_AT])[BEFORE];
  if (fine && epoch > 1)
    for (int other = threadIdx.x; other < (int)ranks; other += movers())
      if (other != rank) fine &= has_begun(notes, other, epoch - 1, before, timeout);
  if (!sync_and(fine)) return;
  SHARED int done[MOST_READY], count[MOST_READY];
  SHARED u64 best, idle_since;
  Choice choice = {done, count, &best, &idle_since};
  Walk walk = {0, 0, table[ORDER] == 1, false, false};
  Turn turn = {-1, 0, {0, 0}, false};
  if (queues && table[ORDER] == 2) choice.begin(run);
  while (queues && (table[ORDER] == 2 ? choice.next(run, turn) == 1 : walk.next(run, turn)))
    if (!run_piece(run, turn)) return;
  // Those that sent data have announced the launch: were they in the same call?
  if (blockIdx.x == 0) {
    all_called(tail, epoch, signature, timeout);
    if (!PACKETS) sync_movers();
  }
}

// queues, stride: as in the table. input, output: of this rank. signature: of what is called. timeout: nanoseconds.
KERNEL run_call(const i64* table, i64 queues, i64 stride, char* input, char* output, u64 signature, u64 timeout) {
  const int number = queues ? blockIdx.x % (int)queues : 0, slice = queues ? blockIdx.x / (int)queues : 0;
  const i64* const tail = table + HEAD_WORDS + stride * queues;
  const u64 epoch = ((volatile u64*)tail[STATE_AT])[EPOCH] + 1;
  const int blocks = queues ? (int)(queues * table[SLICES]) : 1;
#if PACKETS
  // Warps leave one by one when they give up: the last one of the block counts.
  SHARED unsigned int warps;
  if (threadIdx.x == 0) warps = 0;
  sync_all();
  conduct_call(table, tail, queues, stride, input, output, epoch, signature, timeout, number, slice);
  together();
  if (threadIdx.x % WARP == 0 && atomicAdd(&warps, 1u) + 1 == (unsigned)(movers() / WARP))
    leave(tail, output, epoch, (unsigned int)signature, blocks);
#else
  if (threadIdx.x == 0) mail().written = mail().sent = 0;
  sync_all();
  if ((int)threadIdx.x >= movers()) return mail().deliver(slice);
  conduct_call(table, tail, queues, stride, input, output, epoch, signature, timeout, number, slice);
  if (threadIdx.x == 0) {
    mail().post(nullptr, 0, 0);
    leave(tail, output, epoch, (unsigned int)signature, blocks);
  }
#endif
}
