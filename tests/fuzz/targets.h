// What the fuzzers run, and tests/fuzz/regression_test.cc with every file of the corpora. Each
// takes one input and aborts on the first thing that is wrong.
#ifndef TESTS_FUZZ_TARGETS_H_
#define TESTS_FUZZ_TARGETS_H_

#include <cstddef>
#include <cstdint>

namespace baton::fuzz {

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

#endif  // TESTS_FUZZ_TARGETS_H_
