// What tests expect of a status, and of a peer that has checked every reply.
#ifndef TESTS_HARNESS_EXPECTATIONS_H_
#define TESTS_HARNESS_EXPECTATIONS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/harness/peer_process.h"

#define ASSERT_OK(expression)                                             \
  do {                                                                    \
    const auto& assert_ok_ = (expression);                                \
    ASSERT_TRUE(assert_ok_.ok()) << ::baton::harness::ToText(assert_ok_); \
  } while (false)

// Moves the value of a StatusOr into `target`.
#define ASSERT_OK_AND_ASSIGN(target, expression) \
  do {                                           \
    auto assigned_ = (expression);               \
    ASSERT_OK(assigned_);                        \
    target = *std::move(assigned_);              \
  } while (false)

#define EXPECT_OK(expression)                                             \
  do {                                                                    \
    const auto& expect_ok_ = (expression);                                \
    EXPECT_TRUE(expect_ok_.ok()) << ::baton::harness::ToText(expect_ok_); \
  } while (false)

namespace baton::harness {

inline std::string ToText(const absl::Status& status) { return status.ToString(); }
template <typename T>
std::string ToText(const absl::StatusOr<T>& status) {
  return status.status().ToString();
}

// Stops the peer: nothing was lost, repeated, reordered or disconnected.
inline void ExpectNothingLost(PeerProcess& peer) {
  const auto result = peer.Stop();
  ASSERT_OK(result);
  for (const char* field :
       {"lost", "duplicated", "reordered", "corrupt", "wrong_total", "disconnects"}) {
    EXPECT_TRUE(result->Has(field)) << field;
    EXPECT_EQ(result->Count(field), 0u) << field;
  }
  EXPECT_TRUE(result->Flag("ok")) << result->text();
  EXPECT_GT(result->Count("messages"), 0u);
}

}  // namespace baton::harness

#endif  // TESTS_HARNESS_EXPECTATIONS_H_
