// The connections that connecting_service.cc asks for, which its peers answer and count.
#ifndef TESTS_NATIVE_CONNECTING_ASKS_H_
#define TESTS_NATIVE_CONNECTING_ASKS_H_

#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <set>

#include "tests/native/message.h"  // its sequence is the ask

namespace baton::native {

enum class Ask : uint8_t {
  kUsed,      // the peer accepts
  kUnheard,   // at a port where nobody listens
  kRejected,  // by the peer
};

constexpr Ask AskOf(uint64_t number) {
  return number % 8 == 3 ? Ask::kUnheard : number % 8 == 5 ? Ask::kRejected : Ask::kUsed;
}

inline constexpr uint16_t kNobodysPort = 1;  // tcpmux, which is not in use

// A peer counts the asks that it has seen:
//   withdrawn: a request that was given up before it was answered
//   unused: a connection that ended without its message
//   repeated: an ask that came twice
//   wrong: a message of another ask, or a second one
struct AskCount {
  std::set<uint64_t> asks;
  uint32_t rejected = 0, accepted = 0, used = 0, withdrawn = 0, unused = 0, repeated = 0, wrong = 0;

  void Begin(uint64_t ask) {
    if (!asks.insert(ask).second) ++repeated;
  }
  // A message of the connection of `ask`, for which one has come before if `again`.
  void Use(uint64_t ask, bool again, const FailoverMessage& message) {
    if (message.sequence != ask || again) ++wrong;
    if (!again) ++used;
  }
  // In one line; `open` connections are left.
  void Print(size_t open) const {
    std::printf(
        "requests %zu rejected %u accepted %u used %u withdrawn %u unused %u repeated %u wrong %u "
        "open %zu\n",
        asks.size() + repeated, rejected, accepted, used, withdrawn, unused, repeated, wrong, open);
    std::fflush(stdout);
  }
};

// Turns a peer until its input ends, and lets it tell its counts for each piece of input.
template <typename Peer>
void ServeAsks(Peer& peer) {
  for (;;) {
    peer.Turn();
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    char line[64];
    if (poll(&input, 1, 0) != 1) continue;
    if (read(STDIN_FILENO, line, sizeof(line)) <= 0) return;
    peer.Tell();
  }
}

}  // namespace baton::native

#endif  // TESTS_NATIVE_CONNECTING_ASKS_H_
