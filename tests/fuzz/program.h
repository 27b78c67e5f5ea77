// The targets that the fuzzers run, and that tests/fuzz/regression_test.cc runs with every file of
// the corpora. The reader of their inputs.
#ifndef TESTS_FUZZ_PROGRAM_H_
#define TESTS_FUZZ_PROGRAM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace baton::fuzz {

// Reads a fuzz input as a program: a sequence of small numbers, bytes and blocks. An input that is
// at its end gives zeros, so every input is a program.
class Program {
 public:
  Program(const uint8_t* data, size_t size) : at_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  size_t left() const { return left_; }

  template <typename T>
  T Take() {
    static_assert(std::is_integral_v<T>);
    T value = 0;
    const size_t size = std::min(sizeof(T), left_);
    if (size > 0) std::memcpy(&value, at_, size);
    Skip(size);
    return value;
  }
  uint8_t Byte() { return Take<uint8_t>(); }
  bool Flag() { return (Byte() & 1) != 0; }
  // 0 <= result < bound
  uint32_t Below(uint32_t bound) { return Byte() % bound; }

  // A number that is mostly near `base`: where the bounds that are checked lie.
  uint64_t Near(uint64_t base) {
    const uint8_t how = Byte();
    if (how < 224) return base + static_cast<uint64_t>(static_cast<int64_t>(how % 32) - 8);
    if (how < 240) return base + static_cast<uint64_t>(static_cast<int64_t>(Take<int16_t>()));
    return Take<uint64_t>();
  }

  // Up to `size` bytes.
  std::string_view Block(size_t size) {
    const std::string_view block(reinterpret_cast<const char*>(at_), std::min(size, left_));
    Skip(block.size());
    return block;
  }
  std::string_view Rest() { return Block(left_); }

 private:
  void Skip(size_t size) {
    at_ += size;
    left_ -= size;
  }

  const uint8_t* at_;
  size_t left_;
};

// Each of the following takes one input and aborts on the first thing that is wrong.

// Text that people write: batond's configuration, what control reads at its start.
void ConfigText(const uint8_t* data, size_t size);
void ControlConfigText(const uint8_t* data, size_t size);

// Bytes that a peer of the soft device sends, at any time and in any pieces: through the frame
// stream alone, and to a whole device that is being used.
void FrameStreamBytes(const uint8_t* data, size_t size);
void SoftWire(const uint8_t* data, size_t size);

// Capsules that a host of NVMe over Fabrics sends to nvmed.
void NvmeCapsule(const uint8_t* data, size_t size);

// An arena that anybody may have written, for those who look into it.
void ArenaInspection(const uint8_t* data, size_t size);

// Frames that a process sends to the sockets of a keeper.
void KeeperSockets(const uint8_t* data, size_t size);

// A worker that writes whatever it maps, beside one of another service that is correct: on the
// queue drivers with a device in memory, and on whole engines.
void HostileWorker(const uint8_t* data, size_t size);
void HostileEngine(const uint8_t* data, size_t size);

// Clients of a NIC that write whatever they can to its sockets and to the memory that they share
// with it, beside one that is correct.
void NicClients(const uint8_t* data, size_t size);

// The queues of such a client alone, whose bytes may change between the NIC's loads.
void NicQueues(const uint8_t* data, size_t size);

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_PROGRAM_H_
