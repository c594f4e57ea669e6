// First come, first served with std::priority_queue, one event per transfer: what the Python engines are held against.
// Reads: E stages, C pieces; resource, hold, lag; successors in CSR; fan-in. Prints seconds and the finish time.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <queue>
#include <vector>

using Int = std::int64_t;

static std::vector<Int> read(FILE* file, Int count) {
    std::vector<Int> values(count);
    if (std::fread(values.data(), sizeof(Int), count, file) != static_cast<std::size_t>(count)) std::abort();
    return values;
}

struct Event {
    Int time, piece, stage;
    bool operator<(const Event& other) const {
        if (time != other.time) return time > other.time;
        return piece != other.piece ? piece > other.piece : stage > other.stage;
    }
};

int main(int, char** arguments) {
    FILE* file = std::fopen(arguments[1], "rb");
    const auto sizes = read(file, 5);
    const Int stages = sizes[0], pieces = sizes[1], edges = sizes[2], servers = sizes[3], turns = sizes[4];
    const auto resource = read(file, stages), hold = read(file, stages), lag = read(file, stages);
    const auto starts = read(file, stages + 1), next = read(file, edges), fan_in = read(file, stages);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<Int> free(servers, 0), ready(stages * pieces, 0);
    std::vector<int> left(stages * pieces);
    for (Int p = 0; p < pieces; ++p)
        for (Int s = 0; s < stages; ++s) left[p * stages + s] = static_cast<int>(fan_in[s]);
    std::priority_queue<Event> queue;
    // In turns a stage has its next piece in line when the one before has left.
    std::vector<Int> served(stages, 0), left_at(stages, 0);
    for (Int p = 0; p < (turns ? 1 : pieces); ++p)
        for (Int s = 0; s < stages; ++s)
            if (!fan_in[s]) queue.push({0, p, s});
    Int finish = 0;
    while (!queue.empty()) {
        const auto [time, piece, stage] = queue.top();
        queue.pop();
        const Int server = resource[stage];
        const Int start = time > free[server] ? time : free[server];
        free[server] = start + hold[stage];
        served[stage] = piece + 1;
        left_at[stage] = free[server];
        if (turns && piece + 1 < pieces && left[(piece + 1) * stages + stage] == 0) {
            const Int then = ready[(piece + 1) * stages + stage];
            queue.push({then > free[server] ? then : free[server], piece + 1, stage});
        }
        const Int done = start + lag[stage];
        if (done > finish) finish = done;
        for (Int k = starts[stage]; k < starts[stage + 1]; ++k) {
            const Int item = piece * stages + next[k];
            if (done > ready[item]) ready[item] = done;
            if (--left[item] == 0 && (!turns || served[next[k]] == piece)) {
                const Int gone = turns ? left_at[next[k]] : 0;
                queue.push({ready[item] > gone ? ready[item] : gone, piece, next[k]});
            }
        }
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    std::printf("%.9f %lld\n", spent.count(), static_cast<long long>(finish));
}
