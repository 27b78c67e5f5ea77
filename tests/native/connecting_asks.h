// What connecting_service.cc asks for, and connecting_peer.cc answers.
#ifndef TESTS_NATIVE_CONNECTING_ASKS_H_
#define TESTS_NATIVE_CONNECTING_ASKS_H_

#include <cstdint>

#include "tests/native/failover_message.h"  // its sequence is the ask

namespace baton::native {

enum class Ask : uint8_t {
  kUsed,      // the peer accepts
  kUnheard,   // at a port where nobody listens
  kRejected,  // by the peer
};

constexpr Ask AskOf(uint64_t number) {
  return number % 8 == 3 ? Ask::kUnheard : number % 8 == 5 ? Ask::kRejected : Ask::kUsed;
}

inline constexpr uint16_t kNobodysPort = 7999;

}  // namespace baton::native

#endif  // TESTS_NATIVE_CONNECTING_ASKS_H_
