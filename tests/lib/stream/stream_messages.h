// What both ends of a stream of tests know: the messages, and the sizes of rings.
#ifndef TESTS_LIB_STREAM_STREAM_MESSAGES_H_
#define TESTS_LIB_STREAM_STREAM_MESSAGES_H_

#include <cstdint>
#include <cstring>
#include <vector>

namespace baton::testing {

inline constexpr uint32_t kRingBytes = 8192;
inline constexpr uint16_t kWindow = 8;
inline constexpr uint32_t kDepth = 16;  // of queues, at least
inline constexpr uint64_t kMessagesPerAnswer = 4;

// Messages have a number, and bytes that follow from it.
inline std::vector<uint8_t> MessageOf(uint64_t number, uint32_t length) {
  std::vector<uint8_t> message(length);
  for (uint32_t i = 0; i < length; ++i) message[i] = static_cast<uint8_t>(number * 31 + i);
  std::memcpy(message.data(), &number, sizeof(number));
  return message;
}
// Messages from kKeptBegin to kKeptEnd fit into a ring together, and are more than the window.
inline constexpr uint64_t kKeptBegin = 8;
inline constexpr uint64_t kKeptEnd = kKeptBegin + 12;
static_assert(kKeptEnd - kKeptBegin > kWindow);
// Short ones, long ones, and some as long as the ring.
inline uint32_t LengthOf(uint64_t number) {
  if (number % 41 == 7) return kRingBytes;
  return static_cast<uint32_t>(8 + number * 7919 % (number % 5 == 0 ? 4000 : 200));
}

}  // namespace baton::testing

#endif  // TESTS_LIB_STREAM_STREAM_MESSAGES_H_
