// The other end of the connections, in a process of its own and in libibverbs alone: numbers what
// it sends, and finds what was lost, came twice or in another order.
#ifndef TESTS_NATIVE_CHECKING_PEER_H_
#define TESTS_NATIVE_CHECKING_PEER_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/native/message.h"

namespace baton::native {

// A connection of the peer, which has none of Baton, but on the soft device its device. Its memory
// has the layout of tests/bench/bench_server.h. All receives are posted when it is made.
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
  // Posts what Receive() and Send() have asked for since the last call.
  virtual absl::Status Flush() = 0;
  // Returns the slots of the receives that have completed since the last call. An error: a request
  // has failed.
  virtual absl::StatusOr<absl::Span<const uint32_t>> Poll() = 0;
};

// Sums over its connections. Replies that are missing count as lost when a later one comes, and at
// the end.
struct PeerRecord {
  std::atomic<uint16_t> port = 0;  // told by who started it: connect there
  std::atomic<uint32_t> connected = 0;
  std::atomic<bool> finished = false;  // all is answered, or will not be
  std::atomic<bool> stop = false;      // no new message; ends when all are answered
  std::atomic<uint64_t> sent = 0, answered = 0;
  std::atomic<uint64_t> lost = 0, repeated = 0, reordered = 0, torn = 0;
  // Counts replies whose count differs from their number: the service did not get all messages
  // before them, or got one twice.
  std::atomic<uint64_t> miscounted = 0;
  std::atomic<uint64_t> longest_silence_ns = 0;  // of a connection that has messages unanswered
  char failure[256] = {};                        // what ended it; empty: nothing has
};

class CheckingPeer {
 public:
  // The program's main() begins with it: it does not return in a peer, which is this program again.
  static void RunIfPeer(int argc, char** argv);

  // Starts it. `window`: messages of a connection that are unanswered at a time, at most 32; and as
  // many again, one by one, while no reply comes.
  CheckingPeer(const std::string& host, uint32_t connections, uint32_t window);
  ~CheckingPeer();  // kills it
  CheckingPeer(const CheckingPeer&) = delete;
  CheckingPeer& operator=(const CheckingPeer&) = delete;

  const PeerRecord& record() const { return *record_.get(); }
  void Connect(uint16_t port) { record_->port.store(port); }
  // Whether it has ended, with its record complete, within some patience.
  bool Finish();

 private:
  SharedPage<PeerRecord> record_;
  pid_t process_ = -1;
};

}  // namespace baton::native

#endif  // TESTS_NATIVE_CHECKING_PEER_H_
