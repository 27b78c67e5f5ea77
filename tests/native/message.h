// What the peer and the service under test say to each other.
#ifndef TESTS_NATIVE_MESSAGE_H_
#define TESTS_NATIVE_MESSAGE_H_

#include <cstdint>

namespace baton::native {

// The peer numbers its messages on each connection from 0. The service counts what it has processed
// on it, and answers each message with its number and that count: they differ when it did not get
// all, or one twice.
struct Message {
  uint64_t number = 0;
  uint64_t count = 0;
  uint64_t connection = 0;  // the peer's name of it
  uint64_t sum = 0;
  uint64_t padding[4] = {};
};
static_assert(sizeof(Message) == 64);

inline uint64_t SumOf(const Message& message) {
  return (message.number * 0x9e37'79b9'7f4a'7c15 ^ message.count * 0xc2b2'ae3d'27d4'eb4f) +
         message.connection * 0x1656'67b1'9e37'79f9 + 1;
}

}  // namespace baton::native

#endif  // TESTS_NATIVE_MESSAGE_H_
