// A NIC in software that one thread has with its clients.
#ifndef TESTS_BENCH_THREADED_NIC_H_
#define TESTS_BENCH_THREADED_NIC_H_

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/nic.h"
#include "lib/verbs/verbs.h"

namespace baton::bench {

// Two sockets of whole messages: of one the NIC has the ends.
struct NicSockets {
  FileDescriptor objects, ids;
};
struct NicClient {
  NicSockets client;
  NicSockets nic;
};
absl::StatusOr<NicClient> MakeNicClient();

// Makes a device whose NIC is at the other ends.
absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(NicSockets sockets);

// While a client is set up, or asks the NIC for something, a thread of its own turns it.
// Thread-compatible.
class ThreadedNic {
 public:
  // Serves these, with the thread.
  static absl::StatusOr<std::unique_ptr<ThreadedNic>> Start(std::vector<NicSockets> clients);
  ~ThreadedNic() { Stop(); }

  // Ends the thread: the caller turns the NIC from now on.
  void Stop();
  // Starts the thread again.
  void Resume();

  // Without the thread.
  bool Progress() { return nic_->Progress(); }
  // The same, but for messages from clients.
  bool Execute() { return nic_->Execute(); }

 private:
  std::unique_ptr<nic::Nic> nic_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_THREADED_NIC_H_
