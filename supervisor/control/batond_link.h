// What control asks of batond, over the socket that batond has started it with.
#ifndef SUPERVISOR_CONTROL_BATOND_LINK_H_
#define SUPERVISOR_CONTROL_BATOND_LINK_H_

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/control.pb.h"

namespace baton {

// Thread-safe between Start and Stop.
class BatondLink {
 public:
  struct Answer {
    internal::BatondReply reply;
    std::vector<FileDescriptor> descriptors;
  };
  // Batond has read its configuration again, unasked. Called from the link's thread.
  using OnNews = std::function<void(const internal::BatondReply&)>;

  // Without a socket nobody answers.
  explicit BatondLink(FileDescriptor socket);
  ~BatondLink() { Stop(); }
  BatondLink(const BatondLink&) = delete;
  BatondLink& operator=(const BatondLink&) = delete;

  void Start(OnNews on_news);
  void Stop();  // fails the calls that wait

  // Sends `request`, whose id is set here, and waits. kFailedPrecondition: nobody is there who
  // could be asked; otherwise what batond says, or that it does not answer.
  absl::StatusOr<Answer> Ask(internal::BatondRequest request);

 private:
  void Run();
  absl::Status Read(std::vector<internal::BatondReply>* news);

  const bool connected_;
  OnNews on_news_;
  FileDescriptor wake_;  // eventfd
  std::thread thread_;

  std::mutex mutex_;  // guards what follows
  MessageChannel channel_;
  std::map<uint64_t, std::promise<absl::StatusOr<Answer>>> waiting_;
  uint64_t last_id_ = 0;
  absl::Status ended_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_BATOND_LINK_H_
