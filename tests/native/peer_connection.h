// A connection of a peer that has none of Baton, but on the soft device its device.
#ifndef TESTS_NATIVE_PEER_CONNECTION_H_
#define TESTS_NATIVE_PEER_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::native {

// Its memory has the layout of tests/bench/protocol.h. All receives are posted when it is made.
// Thread-compatible.
class PeerConnection {
 public:
  // Blocks until it is established: on libibverbs and librdmacm, or on a soft device of its own
  // where no rdma device is under test.
  static absl::StatusOr<std::unique_ptr<PeerConnection>> Connect(const std::string& host,
                                                                 uint16_t port);
  virtual ~PeerConnection() = default;

  virtual uint8_t* slab() const = 0;
  virtual absl::Status Receive(uint32_t slot, size_t offset, uint32_t length) = 0;
  virtual absl::Status Send(size_t offset, uint32_t length) = 0;
  // What was asked for since the last one is posted.
  virtual absl::Status Flush() = 0;
  // Returns the slots of the receives that have completed since the last call. An error: a request
  // has failed.
  virtual absl::StatusOr<absl::Span<const uint32_t>> Poll() = 0;
};

}  // namespace baton::native

#endif  // TESTS_NATIVE_PEER_CONNECTION_H_
