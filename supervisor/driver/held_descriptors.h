// A driver's client of batond's store (proto/baton/internal/store.proto), which holds descriptors
// for the drivers of a service, one after the other.
#ifndef SUPERVISOR_DRIVER_HELD_DESCRIPTORS_H_
#define SUPERVISOR_DRIVER_HELD_DESCRIPTORS_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/store.pb.h"

namespace baton::driver_process {

// Blocking, for at most kTimeoutMs each, but for PutSoon: batond answers at once, unless the whole
// of it stands still. Thread-compatible.
class HeldDescriptors {
 public:
  static constexpr int kTimeoutMs = 5000;
  // Requests that may wait for the reply of another: each is asked alone, since descriptors do not
  // say which request they belong to.
  static constexpr size_t kMostWaiting = 16;
  // Receives the result of a request.
  using Done = std::function<void(const absl::Status&)>;

  // Null: nobody holds anything for this process.
  static std::unique_ptr<HeldDescriptors> OfBatond();

  explicit HeldDescriptors(FileDescriptor socket, int timeout_ms = kTimeoutMs)
      : channel_(std::move(socket)), timeout_ms_(timeout_ms) {}

  // Copies all that batond holds for the service, for Reconnect.
  absl::Status CopyAll();
  // Gives the next batond, at the other end of `socket`, all that the former one held for this
  // process: what was put, and what was found with Get or CopyAll. Requests that wait for a reply
  // fail. Blocks as Put does. An error: the next batond holds some of it, or nothing.
  absl::Status Reconnect(FileDescriptor socket);

  // Any number of them, in entries "<name>.<N>". All stay the caller's.
  absl::Status Put(const std::string& name, const std::vector<int>& descriptors);
  // Puts one entry without waiting. TakeReplies, or the next request, calls `done` when the reply
  // has come. PutSoon itself calls `done` when the request cannot be queued or sent. A later
  // PutSoon of the same name replaces a request that was not sent yet, and its result goes to both
  // `done`.
  void PutSoon(const std::string& name, const std::vector<int>& descriptors, Done done);
  void TakeReplies();                        // that are there
  bool IsReplyDue() const { return late_; }  // fd() is readable when it is there
  int fd() const { return channel_.fd(); }
  int timeout_ms() const { return timeout_ms_; }
  // In the order of Put; empty: there are none of that name.
  absl::StatusOr<std::vector<FileDescriptor>> Get(const std::string& name);
  // kNotFound: there is none of that name. Only what fits in one entry.
  absl::Status Drop(const std::string& name);
  // `but`: a name whose entries stay.
  absl::Status DropAll(const std::string& but = "");

 private:
  struct Waiting {
    internal::StoreRequest request;
    std::vector<FileDescriptor> descriptors;
    Done done;
  };

  absl::Status TakeReply(int timeout_ms);
  void AskNext();
  absl::StatusOr<internal::StoreReply> Ask(const internal::StoreRequest& request,
                                           const std::vector<int>& sent,
                                           std::vector<FileDescriptor>* received);
  absl::StatusOr<std::vector<std::string>> List();
  absl::Status DropEntry(const std::string& entry);

  // Notes what batond holds from now on under the name of an entry; none: nothing.
  absl::Status Note(const std::string& entry, const std::vector<int>& descriptors);

  MessageChannel channel_;
  // Our own copies of what batond holds, by the name of the entry, so that it outlives batond.
  std::map<std::string, std::vector<FileDescriptor>> copies_;
  const int timeout_ms_;
  bool late_ = false;  // a reply is still to come
  Done done_;          // of its request; null: that was given up
  std::deque<Waiting> waiting_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_HELD_DESCRIPTORS_H_
