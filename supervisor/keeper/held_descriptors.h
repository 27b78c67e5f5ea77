// What batond holds for the keepers of a service, one after the other (proto/baton/internal/
// store.proto): a keeper's side.
#ifndef SUPERVISOR_KEEPER_HELD_DESCRIPTORS_H_
#define SUPERVISOR_KEEPER_HELD_DESCRIPTORS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/store.pb.h"

namespace baton::keeper {

// Blocking, for at most kTimeoutMs each: batond answers at once or not at all. Thread-compatible.
class HeldDescriptors {
 public:
  static constexpr int kTimeoutMs = 5000;

  // Null: nobody holds anything for this process.
  static std::unique_ptr<HeldDescriptors> OfBatond();

  explicit HeldDescriptors(FileDescriptor socket, int timeout_ms = kTimeoutMs)
      : channel_(std::move(socket)), timeout_ms_(timeout_ms) {}

  // Any number of them, in entries "<name>.<N>". All stay the caller's.
  absl::Status Put(const std::string& name, const std::vector<int>& descriptors);
  // In the order of Put; empty: there are none of that name.
  absl::StatusOr<std::vector<FileDescriptor>> Get(const std::string& name);
  // kNotFound: there is none of that name. Only what fits in one entry.
  absl::Status Drop(const std::string& name);
  // `but`: a name whose entries stay.
  absl::Status DropAll(const std::string& but = "");

 private:
  absl::StatusOr<internal::StoreReply> Ask(const internal::StoreRequest& request,
                                           const std::vector<int>& sent,
                                           std::vector<FileDescriptor>* received);
  absl::StatusOr<std::vector<std::string>> List();
  absl::Status DropEntry(const std::string& entry);

  MessageChannel channel_;
  const int timeout_ms_;
  int late_ = 0;  // replies to requests that were given up
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_HELD_DESCRIPTORS_H_
