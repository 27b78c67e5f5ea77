// What the doorbell costs a forked process: a peer measures round trips of 64 bytes over the rdma
// device, answered by the process that opened it and by one that was forked from that, by turns.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "tests/lib/verbs/connected_test.h"
#include "tests/native/message.h"

namespace baton::native {
namespace {

using verbs::testing::Buffer;
using verbs::testing::kAllAccess;
using verbs::testing::Side;

constexpr uint32_t kRoundTrips = 4000;  // of a turn
constexpr int kTurns = 6;               // of each
constexpr uint32_t kBytes = 64;
constexpr uint64_t kSent = 1, kReceived = 2;

// The page that the processes share. `median_ns` is what the peer found in its last turn.
struct Board {
  std::atomic<uint16_t> port = 0;
  std::atomic<uint32_t> turn = 0;  // the peer may measure
  std::atomic<uint32_t> done = 0;
  std::atomic<uint64_t> median_ns = 0;
};

std::unique_ptr<verbs::Device> Open() { return verbs::rdma::CreateRdmaDevice({}).value(); }

// Waits for a message, having posted the receive of the next.
class End {
 public:
  explicit End(Side* side) : side_(side), memory_(side->device.get(), 4096, kAllAccess) {}

  void Post() {
    BATON_CHECK(
        verbs::testing::PostReceive(*side_->queue_pair, kReceived, {memory_.Sge(0, kBytes)}).ok());
  }
  void Send() {
    BATON_CHECK(verbs::testing::PostSend(*side_->queue_pair,
                                         verbs::testing::Request(verbs::Opcode::kSend, kSent),
                                         {memory_.Sge(kBytes, kBytes)})
                    .ok());
  }
  void Await() {
    while (received_ == 0) {
      verbs::Completion taken[4];
      const int count = side_->queue->Poll(absl::MakeSpan(taken)).value();
      for (int i = 0; i < count; ++i) {
        BATON_CHECK(taken[i].status == verbs::CompletionStatus::kSuccess);
        if (taken[i].wr_id == kReceived) ++received_;
      }
    }
    --received_;
  }

 private:
  Side* const side_;
  Buffer memory_;
  int received_ = 0;
};

[[noreturn]] void Measure(Board* board, const char* host) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (board->port == 0) usleep(1000);
  Side side(Open());
  side.id = side.device->Connect({host, board->port}, side.queue_pair.get(), {}).value();
  bool established = false;
  while (!established) {
    side.Turn();
    for (; !side.events.empty(); side.events.pop_front()) {
      established |= side.events.front().type == verbs::CmEventType::kEstablished;
    }
  }
  End end(&side);
  for (uint32_t turn = 1;; ++turn) {
    while (board->turn < turn) usleep(1000);
    std::vector<uint64_t> trips;
    for (uint32_t i = 0; i < kRoundTrips; ++i) {
      end.Post();
      const uint64_t begin = MonotonicNanoseconds();
      end.Send();
      end.Await();
      trips.push_back(MonotonicNanoseconds() - begin);
    }
    std::nth_element(trips.begin(), trips.begin() + kRoundTrips / 2, trips.end());
    board->median_ns = trips[kRoundTrips / 2];
    board->done = turn;
  }
}

// What a turn of the peer's has found.
void Answer(Board* board, End& end) {
  ++board->turn;
  for (uint32_t i = 0; i < kRoundTrips; ++i) {
    end.Await();
    end.Post();
    end.Send();
  }
  while (board->done < board->turn) usleep(1000);
}

int Main() {
  const char* const host = std::getenv("BATON_VM_ADDRESS");
  BATON_CHECK(host != nullptr);
  SharedPage<Board> board;
  const pid_t peer = fork();
  if (peer == 0) Measure(board.get(), host);
  Side side(Open());
  const auto listener = side.device->Listen({host, 0}, 1).value();
  board->port = listener->address().port;
  End end(&side);
  end.Post();
  bool established = false;
  while (!established) {
    side.Turn();
    for (; !side.events.empty(); side.events.pop_front()) {
      verbs::CmEvent& event = side.events.front();
      established |= event.type == verbs::CmEventType::kEstablished;
      if (event.type != verbs::CmEventType::kConnectRequest) continue;
      side.id = std::move(event.new_id);
      BATON_CHECK(side.id->Accept(side.queue_pair.get(), {}).ok());
    }
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    Answer(board.get(), end);
    const uint64_t opener = board->median_ns;
    const pid_t child = fork();
    if (child == 0) {
      BATON_CHECK(side.device->AfterFork().ok());
      Answer(board.get(), end);
      _exit(0);
    }
    BATON_CHECK(waitpid(child, nullptr, 0) == child);
    const uint64_t forked = board->median_ns;
    std::printf(
        "round trip, median: answered by the opener %6.2f us, by a forked process %6.2f us,"
        " %.3f of it\n",
        static_cast<double>(opener) / 1e3, static_cast<double>(forked) / 1e3,
        static_cast<double>(forked) / static_cast<double>(opener));
    std::fflush(stdout);
  }
  kill(peer, SIGKILL);
  waitpid(peer, nullptr, 0);
  _exit(0);
}

}  // namespace
}  // namespace baton::native

int main() { return baton::native::Main(); }
